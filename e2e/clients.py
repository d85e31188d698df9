"""The stock OpenAI and Anthropic clients against an Envoy with Sightline: clients.py URL MODEL IMAGE. Ends with 0 if all held."""
import base64, sys
import anthropic, openai
from openai import OpenAI

url, model, picture = sys.argv[1:]
client = OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
chat = client.chat.completions.create

text = chat(model=model, max_tokens=4, messages=[{"role": "user", "content": "Hello"}])
assert text.choices[0].message.content and text.usage.prompt_tokens > 0, text

events = list(chat(model=model, max_tokens=4, stream=True, stream_options={"include_usage": True},
                   messages=[{"role": "user", "content": "Hello"}]))
assert any(e.choices and e.choices[0].delta.content for e in events) and events[-1].usage.prompt_tokens > 0, events

def look(question, more=b""):
    data = base64.b64encode(open(picture, "rb").read() + more).decode()
    return chat(model=model, max_tokens=4, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}, {"type": "text", "text": question}]}])

look("What is this?")
for _ in range(6):  # on a machine too busy for decisions Envoy goes on without
    if cached := look("What is this?").usage.prompt_tokens_details.cached_tokens:
        break
assert cached, "never cached"

big = look("And this?", b"\0" * 15_000_000)  # 20 MB of base64
assert big.usage.prompt_tokens > 0, big

assert model in [m.id for m in client.models.list()]
# Sightline's own refusals, as each client reads them: both show the message of their API's form and no other's.
refused = {"content-encoding": "gzip"}
try:
    chat(model=model, messages=[{"role": "user", "content": "Hello"}], extra_headers=refused)
    raise SystemExit("an encoded body was accepted")
except openai.APIStatusError as e:
    assert e.status_code == 415 and e.type == "invalid_request_error" and "encoded" in e.body["message"], (e, e.body)

claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
ask = dict(model=model, max_tokens=4, messages=[{"role": "user", "content": "Hello"}])
try:
    claude.messages.create(**ask, extra_headers=refused)
    raise SystemExit("an encoded body was accepted")
except anthropic.APIStatusError as e:
    assert e.status_code == 415 and e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error", (e, e.body)
    assert "encoded" in e.body["error"]["message"], e.body

print(f"openai client: chat, stream, picture ({cached} tokens cached when it comes again), 20 MB, models, errors; anthropic client: errors: all good")
