#!/usr/bin/env bash
# The scenarios of the standalone router's own tests, and of the router worker's, by name: test.sh [--mm-only]
set -euo pipefail
cd "$(dirname "$0")/../.."
only=''
case ${1:-} in
  '') ;;
  --mm-only) only='/MM-' ;;
  *) echo "$1: not known (want --mm-only, or nothing)" >&2; exit 2 ;;
esac
go test -count=1 -v -run "^(TestStandalone|TestScenariosByName)\$$only" ./engine/trtllm ./e2e | grep -E '^ *--- |^(ok|FAIL)|_test.go'
