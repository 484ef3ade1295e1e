"""Which variables of the user's shell a build may see: those that toolchains are known to read, and no others.

A list of secrets can never be complete (DATABASE_URL, *_PAT, AWS_*, ...), a list of what compilers read nearly is.
What a project needs besides, its own table names ([rl-bench] env), or RewardConfig.pass_env.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAMES = frozenset({
    "PATH", "HOME", "USER", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "CI", "SOURCE_DATE_EPOCH",
    "ARFLAGS", "CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_RUN_PATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "OBJC_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "MACOSX_DEPLOYMENT_TARGET", "SDKROOT", "AR", "AS",
    "CC", "CPP", "CXX", "FC", "LD", "NM", "OBJCOPY", "OBJDUMP", "RANLIB", "READELF", "SIZE", "STRINGS", "STRIP",
    "HOST_CC", "HOST_CXX", "TARGET_CC", "TARGET_CXX", "LIBCLANG_PATH", "MAKE", "NINJA_STATUS", "BAZEL_SH",
    "ASFLAGS", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "FFLAGS", "LDFLAGS", "LDLIBS", "LIBS", "CARGO", "RUSTC", "RUSTDOC",
    "RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTC_LINKER", "RUSTC_BOOTSTRAP",
    "RUST_BACKTRACE", "RUST_LOG", "RUST_MIN_STACK", "RUST_TEST_THREADS", "RUST_TEST_NOCAPTURE", "GOARCH", "GOOS",
    "GOROOT", "GOPATH", "GOBIN", "GOCACHE", "GOMODCACHE", "GOTMPDIR", "GOFLAGS", "GOEXPERIMENT", "GOENV",
    "GOTOOLCHAIN", "GOWORK", "GO111MODULE", "GOAMD64", "GOARM", "GOARM64", "GOMAXPROCS", "GOGC", "GOMEMLIMIT",
    "GODEBUG", "GOSUMDB", "GOINSECURE", "GONOSUMDB", "GONOSUMCHECK", "GOVCS", "GOPROXY", "JAVA_HOME", "JDK_HOME",
    "JRE_HOME", "JAVA_OPTS", "JAVA_TOOL_OPTIONS", "CLASSPATH", "MAVEN_HOME", "MAVEN_OPTS", "M2_HOME", "GRADLE_HOME",
    "GRADLE_OPTS", "GRADLE_USER_HOME", "ANDROID_HOME", "ANDROID_SDK_ROOT", "KOTLIN_HOME", "SCALA_HOME", "NODE",
    "NODE_ENV", "NODE_OPTIONS", "NODE_PATH", "NVM_BIN", "NVM_DIR", "COREPACK_HOME", "PNPM_HOME",
    "YARN_CACHE_FOLDER", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "UV_CACHE_DIR", "PYENV_ROOT",
    "PYENV_VERSION", "TOX_WORK_DIR", "GEM_HOME", "GEM_PATH", "RUBYLIB", "RUBYOPT", "RBENV_ROOT", "RBENV_VERSION",
    "GHCUP_INSTALL_BASE_PREFIX", "CABAL_DIR", "STACK_ROOT", "SWIFT_EXEC", "TOOLCHAINS", "NUGET_PACKAGES",
    "PERL5LIB", "PERL_MM_OPT", "PERL_MB_OPT", "ZIG_GLOBAL_CACHE_DIR", "DESTDIR", "PREFIX", "VCPKG_ROOT",
    "CONAN_HOME", "OPENSSL_DIR", "OPENSSL_LIB_DIR", "OPENSSL_INCLUDE_DIR", "OPENSSL_STATIC",
})  # fmt: skip
PREFIXES = (
    "LC_", "CMAKE_", "CTEST_", "PKG_CONFIG", "MESON_", "CARGO_", "RUSTUP_", "CC_", "CXX_", "CFLAGS_", "CXXFLAGS_",
    "AR_", "CGO_", "CCACHE_", "SCCACHE_", "DISTCC_", "PYTHON", "PYTEST_", "npm_config_", "NPM_CONFIG_", "DOTNET_",
    "MSBUILD", "ASAN_", "UBSAN_", "TSAN_", "LSAN_", "MSAN_", "LLVM_", "CLANG_", "OMP_", "OPENBLAS_", "MKL_",
)  # fmt: skip
# Names that the lists above let through and that hold secrets all the same.
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|API_?KEY|ACCESS_?KEY|PRIVATE|(?:^|_)(?:KEY|PAT|PWD)(?:$|_)",
    re.IGNORECASE,
)
# user:password@host, wherever it stands
SECRET_VALUE = re.compile(r"://[^/\s@]+@")


def allowed_environment(source: Mapping[str, str], extra: Iterable[str] = ()) -> dict[str, str]:
    """The variables of `source` that builds may see; those named in `extra` are passed on whatever they are called."""
    named = set(extra)
    return {name: value for name, value in source.items() if name in named or _is_allowed(name, value)}


def _is_allowed(name: str, value: str) -> bool:
    if name not in NAMES and not name.startswith(PREFIXES):
        return False
    return not SECRET_NAME.search(name) and not SECRET_VALUE.search(value)
