#!/bin/sh
# Lists the fields of one release's requests: dump.sh ENGINE RELEASE ROOT FILE. If ROOT does not exist, the engine's wheel is fetched,
# and its Python files are unpacked there.
set -e
engine=$1 release=$2 root=$3 file=$4
[ -d "$root" ] || {
  mkdir -p "$root.part"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: -d "$root.part" "$engine==$release"
  (cd "$root.part" && python3 -m zipfile -e ./*.whl all && find all -type f ! -name '*.py' -delete && rm ./*.whl)
  mv "$root.part/all" "$root" && rm -r "$root.part"
}
python3 "$(dirname "$0")/dump.py" "$engine" "$release" "$root" > "$file"
