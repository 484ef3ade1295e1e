#!/usr/bin/env bash
# The environments of the arms, each with what does not go together with the others: make_venvs.sh [DIRECTORY]
set -eu
place=${1:-$(dirname "$0")/venvs}
mkdir -p "$place"
make() {
    python3 -m venv "$place/$1"
    "$place/$1/bin/pip" install -q "${@:2}"
}
# torch stays pinned: newer builds bring gigabytes of CUDA packages.
make torch torch==2.13.0 stable-baselines3 "gymnasium[mujoco]" skrl
make jax torch==2.13.0 sbx-rl gymnasium
make rejax rejax gymnax==0.0.9 gymnasium
make rlox torch==2.13.0 rlox gymnasium
make rltools "rltools[mkl]" gymnasium
# RLtools compiles each configuration once; a race begins after that, as ours begins with compiled kernels.
(cd "$(dirname "$0")" && MKL_NUM_THREADS=1 "$place/rltools/bin/python" rltools_sac.py --compile)
