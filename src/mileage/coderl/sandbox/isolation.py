"""What an isolated job sees of this machine and of the user's variables.

A list of secrets can never be complete (DATABASE_URL, *_PAT, AWS_*, ...), a list of what compilers read nearly is.
What a project needs besides, its own table names ([rl-bench] env), or RewardConfig.pass_env.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from mileage.coderl.sandbox.executor import BuildJob, Jail, Limits, LocalExecutor, TreeMount
from mileage.errors import BuildError

# System directories and the few files of /etc that compilers and their loaders read; no host names, no users, no keys.
SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC_PATHS = (
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/maven",
    "/etc/ssl/certs", "/etc/java-11-openjdk", "/etc/java-17-openjdk", "/etc/java-21-openjdk",
)  # fmt: skip
# What of the user's tool directories a build needs; never the credentials that lie beside it.
CARGO_PARTS = ("bin", "registry", "git", "config", "config.toml", "env")


def _accounts() -> dict[str, str]:
    """Minimal account files, because some tools look up their own user."""
    uid, gid = os.geteuid(), os.getegid()
    return {
        "/etc/passwd": f"builder:x:{uid}:{gid}::/home/mileage:/bin/sh\n",
        "/etc/group": f"builder:x:{gid}:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "/etc/hosts": "127.0.0.1 localhost\n",
    }


def visible_paths(env: Mapping[str, str], extra: Iterable[str | Path] = ()) -> tuple[str, ...]:
    """The paths a job may read besides its tree: the system, the toolchains, and `extra`."""
    home = Path(env.get("HOME", str(Path.home())))
    cargo = Path(env.get("CARGO_HOME", home / ".cargo"))
    candidates = [Path(path) for path in (*SYSTEM_PATHS, *ETC_PATHS)]
    candidates += [cargo / part for part in CARGO_PARTS]
    candidates.append(Path(env.get("RUSTUP_HOME", home / ".rustup")))
    candidates += [home / ".m2" / "repository", home / "go" / "pkg", home / ".cache" / "go-build"]
    candidates += [Path(path) for path in extra]
    chosen: list[str] = []
    for path in sorted({str(path) for path in candidates}):
        # A path below one that is already there would be mounted over a read-only parent.
        if os.path.lexists(path) and not any(path.startswith(parent + "/") for parent in chosen):
            chosen.append(path)
    return tuple(chosen)


def make_jail(
    root: Path,
    tree: TreeMount,
    env: Mapping[str, str],
    *,
    readable: Iterable[str | Path] = (),
    disk_bytes: int = 2 << 30,
    network: bool = False,
) -> Jail:
    """Describe an isolated job: `root` is an empty directory to mount on, `tree` the project."""
    visible = visible_paths(env, readable)
    return Jail(root, tree, visible, disk_bytes=disk_bytes, network=network, files=_accounts())


@functools.cache
def isolation_problem() -> str | None:
    """Why jobs cannot be isolated here, or None if they can: it is tried once, for real."""
    directory = Path(tempfile.mkdtemp(prefix="mileage-probe-"))
    try:
        source, root = directory / "tree", directory / "root"
        source.mkdir()
        root.mkdir()
        (source / "file").write_text("kept")
        jail = make_jail(root, TreeMount(source, "/probe", overlay=True), {"HOME": "/nonexistent"}, disk_bytes=1 << 20)
        job = BuildJob(
            steps=(("sh", "-c", "echo changed > file && test ! -e /home/mileage/../../root"),),
            cwd="/probe",
            env={"PATH": "/usr/bin:/bin"},
            limits=Limits(timeout_seconds=10),
            jail=jail,
        )
        result = LocalExecutor().run(job)
        if not result.succeeded:
            return f"the probe failed: {result.steps[-1].output.strip()}"
        return None if (source / "file").read_text() == "kept" else "the overlay wrote through to its lower layer"
    except BuildError as error:
        return str(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# --- Which variables of the user's shell a build may see: those that toolchains are known to read, and no others ---
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
