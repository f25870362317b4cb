# Sourced by scripts that run Python: the client environment, PYTHONPATH and UV, with the prompt `run` for Python.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
nb_client_env client
nb_uv
export UV=$NB_UV PYTHONPATH=$NB_ROOT${PYTHONPATH:+:$PYTHONPATH}
if [ -n "${NB_SCRATCH:-}" ]; then rm -rf "$NB_SCRATCH"; fi # exec skips the trap
cd "$NB_ROOT"
