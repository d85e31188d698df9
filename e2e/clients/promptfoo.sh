#!/bin/sh
# promptfoo asks three questions about an image, twice: promptfoo.sh URL MODEL IMAGE.
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":"{{q}}"}]}]' \
  "$(base64 -w 0 "$3")" > "$work/prompt.json"
cat > "$work/config.yaml" <<YAML
prompts: ["file://$work/prompt.json"]
providers: [{id: "openai:chat:$2", config: {apiBaseUrl: "$1/v1", apiKey: none, max_tokens: 4}}]
tests: [{vars: {q: What is this?}}, {vars: {q: Who made it?}}, {vars: {q: Where is it?}}]
YAML
export PROMPTFOO_CONFIG_DIR="$work" PROMPTFOO_DISABLE_TELEMETRY=1 PROMPTFOO_DISABLE_UPDATE=1 PROMPTFOO_DISABLE_REMOTE_GENERATION=1
export PATH="$CLIENTS/promptfoo/bin:$PATH"
"$CLIENTS/promptfoo/npm/node_modules/.bin/promptfoo" eval -c "$work/config.yaml" --no-cache --no-table --no-share -j 1 --repeat 2
