# Sourced by the steps of the workflows: the client environment, the real Pulumi CLI, and where the report goes.
# Works on any runner with bash, git and Python 3.11 or later. docs/review.md says which variables a step wants.
. "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
NB_REPORT=${NIGHTBATCH_REPORT:-$NB_ROOT/out/review/report.md}
mkdir -p "$(dirname "$NB_REPORT")"

# nb_pulumi: has the Pulumi CLI found, installed or built (minutes the first time) before a deadline runs.
nb_pulumi() { "$NB_VENV/bin/python" -P scripts/pulumi-cli >/dev/null; }

# nb_nightbatch ARGS: the command line.
nb_nightbatch() { NIGHTBATCH_PROGRAM=./nightbatch "$NB_VENV/bin/python" -P -m cli "$@"; }

# nb_summary FILE: shows a Markdown file on the run's page (GitHub), else in the log.
nb_summary() {
  if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then cat "$1" >>"$GITHUB_STEP_SUMMARY"; else cat "$1"; fi
}
