"""Prepare the real projects that the committed rl-bench reports were measured on.

    apt-get install mold lld sccache ccache librust-grep-dev librust-ignore-dev librust-regex-dev librust-clap-2-dev \
        librust-serde-json-dev librust-serde-derive-dev librust-log-dev librust-num-cpus-dev librust-termcolor-dev \
        librust-lazy-static-dev librust-bstr-dev
    apt-get source --download-only rust-ripgrep json-c          (with deb-src enabled)
    npm pack rxjs@7.8.2
    python benchmarks/coderl_projects.py DOWNLOADS PROJECTS

ripgrep becomes a Cargo workspace again: its own nine crates are members, all other crates come from Debian's
directory source. json-c is taken as it is. rxjs gets a package.json with one build script and TypeScript 5.9.3. Each is
a git repository with one commit, so that a cold build starts from its tracked files and from nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

REGISTRY = Path("/usr/share/cargo/registry")
OWN_CRATES = (
    "globset", "grep", "grep-cli", "grep-matcher", "grep-pcre2", "grep-printer", "grep-regex", "grep-searcher",
    "ignore",
)  # fmt: skip
NOT_PACKAGED = re.compile(
    r"^\[(?:dev-dependencies|target\.[^\n]*(?:musl|windows|simd))[^\n]*\]\n(?:[^\[\n].*\n|\n)*", re.MULTILINE
)
SOURCE = f"""[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "{REGISTRY}"
"""


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive whose files are all in one directory, and call that directory `target`."""
    scratch = target.with_name(target.name + ".unpack")
    with tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
    (inner,) = scratch.iterdir()
    inner.rename(target)
    scratch.rmdir()


def prepare_ripgrep(archive: Path, target: Path) -> None:
    unpack(archive, target)
    members = [crate for crate in OWN_CRATES if crate != "grep-pcre2"]
    for crate in members:
        # Debian's crate directories end in the version: grep-0.2.10 is grep, grep-cli-0.1.6 is not.
        (source,) = REGISTRY.glob(f"{crate}-[0-9]*")
        shutil.copytree(source, target / "crates" / crate)
        (target / "crates" / crate / ".cargo-checksum.json").unlink(missing_ok=True)
        # Their own tests, and other platforms, need crates that Debian does not package.
        own = target / "crates" / crate / "Cargo.toml"
        own.write_text(NOT_PACKAGED.sub("", own.read_text()))
    manifest = target / "Cargo.toml"
    text = NOT_PACKAGED.sub("", manifest.read_text()).replace('simd-accel = ["grep/simd-accel"]\n', "")
    listed = ", ".join(f'"crates/{crate}"' for crate in members)
    patches = "\n".join(f'{crate} = {{ path = "crates/{crate}" }}' for crate in members)
    manifest.write_text(f"{text}\n[workspace]\nmembers = [{listed}]\n\n[patch.crates-io]\n{patches}\n")
    (target / ".cargo").mkdir(exist_ok=True)
    (target / ".cargo" / "config.toml").write_text(SOURCE)
    (target / "Cargo.lock").unlink(missing_ok=True)
    subprocess.run(["cargo", "generate-lockfile", "--offline"], cwd=target, check=True)


def prepare_rxjs(archive: Path, target: Path) -> None:
    unpack(archive, target)
    shutil.rmtree(target / "dist")
    package = json.loads((target / "package.json").read_text())
    kept = {key: package[key] for key in ("name", "version", "license", "dependencies")}
    kept["private"] = True
    kept["scripts"] = {"build": "tsc --project src/tsconfig.cjs.json"}
    kept["devDependencies"] = {"typescript": "5.9.3"}
    (target / "package.json").write_text(json.dumps(kept, indent=2) + "\n")
    # The published root configuration names the whole repository; only src/ is published.
    config = {"extends": "./src/tsconfig.cjs.json", "include": ["src/**/*.ts"], "compilerOptions": {"outDir": "dist"}}
    base = (target / "tsconfig.json").read_text()
    (target / "tsconfig.shared.json").write_text(base)
    for file in (target / "src").glob("tsconfig.base.json"):
        file.write_text(file.read_text().replace("../tsconfig.json", "../tsconfig.shared.json"))
    (target / "tsconfig.json").write_text(json.dumps(config, indent=2) + "\n")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=target, check=True)


def track(target: Path, ignored: str = "") -> None:
    """Commit all files of a project, but for what is `ignored`."""
    with (target / ".gitignore").open("a") as file:
        file.write(ignored)
    who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
    for command in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--message", "as prepared")):
        subprocess.run(["git", *command], cwd=target, check=True)


def main() -> None:
    downloads, projects = Path(sys.argv[1]), Path(sys.argv[2])
    projects.mkdir(parents=True, exist_ok=True)
    prepare_ripgrep(next(downloads.glob("rust-ripgrep_*.orig.tar.gz")), projects / "ripgrep")
    unpack(next(downloads.glob("json-c_*.orig.tar.gz")), projects / "json-c")
    prepare_rxjs(next(downloads.glob("rxjs-*.tgz")), projects / "rxjs")
    track(projects / "ripgrep", "target\n")
    track(projects / "json-c")
    track(projects / "rxjs", "node_modules\ndist\n")


if __name__ == "__main__":
    main()
