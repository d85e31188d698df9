#!/bin/sh
# Fetches the clients of TestMoreClients into a folder: setup.sh DIR. One that cannot be had costs only its own test.
dir=$1
mkdir -p "$dir" && dir=$(cd "$dir" && pwd) || exit 1

python() { # NAME PACKAGE…: a virtual environment
  name=$1; shift
  test -d "$dir/$name" && return
  python3 -m venv "$dir/$name" && "$dir/$name/bin/python" -m pip install -q --disable-pip-version-check "$@" ||
    { rm -rf "${dir:?}/$name"; echo "clients: $name could not be had"; }
}

node() { # NAME PACKAGE…: node_modules
  name=$1; shift
  test -d "$dir/$name" && return
  mkdir "$dir/$name" && (cd "$dir/$name" && npm install --no-audit --no-fund --silent "$@") ||
    { rm -rf "${dir:?}/$name"; echo "clients: $name could not be had"; }
}

python langchain openai==3.54.0 anthropic==2.14.0 langchain-openai==1.7.4 langchain-anthropic==1.7.10 litellm==1.110.2
node node openai@7.57.0 @anthropic-ai/sdk@1.14.0
