"""The stock OpenAI and Anthropic clients against an Envoy with Sightline: clients.py URL MODEL IMAGE ADMIN. Ends with 0 if all held."""
import base64, json, sys, urllib.request
import anthropic, openai
from openai import OpenAI

url, model, image, admin = sys.argv[1:]


def predicted():
    """The cached tokens that Sightline predicted of the last request."""
    return json.load(urllib.request.urlopen(admin + "/decisions?n=1"))[0].get("cached_tokens", 0)


def settles(send):
    """What send returns once the prompt is cached: Envoy goes on without a decision on a machine that is too busy."""
    for _ in range(6):
        cached = send()
        if cached and predicted() == cached:
            return cached
    raise SystemExit(f"{cached} tokens cached, {predicted()} predicted")


client = OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
chat = client.chat.completions.create

text = chat(model=model, max_tokens=4, messages=[{"role": "user", "content": "Hello"}])
assert text.choices[0].message.content and text.usage.prompt_tokens > 0, text

events = list(chat(model=model, max_tokens=4, stream=True, stream_options={"include_usage": True},
                   messages=[{"role": "user", "content": "Hello"}]))
assert any(e.choices and e.choices[0].delta.content for e in events) and events[-1].usage.prompt_tokens > 0, events

def look(question, more=b""):
    data = base64.b64encode(open(image, "rb").read() + more).decode()
    return chat(model=model, max_tokens=4, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}, {"type": "text", "text": question}]}])

look("What is this?")
cached = settles(lambda: look("What is this?").usage.prompt_tokens_details.cached_tokens)

big = look("And this?", b"\0" * 15_000_000)  # 20 MB of base64
assert big.usage.prompt_tokens > 0, big

assert model in [m.id for m in client.models.list()]
tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
called = chat(model=model, max_tokens=4, tools=[tool], tool_choice="required", messages=[{"role": "user", "content": "Look."}])
assert called.choices[0].message.tool_calls[0].function.name == "look", called

long = "What is in the harbour of this town? " * 20
respond = client.responses.create
assert respond(model=model, max_output_tokens=4, input=long).output_text
settles(lambda: respond(model=model, max_output_tokens=4, input=long).usage.input_tokens_details.cached_tokens)
events = list(respond(model=model, max_output_tokens=4, input=long, stream=True))
assert events[-1].type == "response.completed" and events[-1].response.output_text, events
called = respond(model=model, max_output_tokens=4, input="Look.", tools=[{"type": "function", **tool["function"]}], tool_choice="required")
assert called.output[0].name == "look", called

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

hello = claude.messages.create(**ask)
assert hello.content[0].text and hello.usage.input_tokens > 0, hello
with claude.messages.stream(**ask) as stream:
    assert "".join(stream.text_stream) == hello.content[0].text
    assert stream.get_final_message().stop_reason == "max_tokens"
called = claude.messages.create(**ask, tools=[{"name": "look", "input_schema": {"type": "object"}}], tool_choice={"type": "any"})
assert called.content[0].name == "look", called
ask["messages"] = [{"role": "user", "content": long}]
claude.messages.create(**ask)
assert any(claude.messages.create(**ask) and predicted() for _ in range(6)), "no hit is predicted"

print(f"openai client: chat, stream, image ({cached} tokens cached when it comes again), 20 MB, models, tools, responses, errors; "
      "anthropic client: messages, stream, tools, errors: all good")
