"""LiteLLM's OpenAI and Anthropic routes, whole and streamed: litellm_.py URL MODEL IMAGE."""
import base64, os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

url, model, file = sys.argv[1:]
image = "data:image/png;base64," + base64.b64encode(open(file, "rb").read()).decode()
say = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "What is this?"}]}]
text = [{"role": "user", "content": "What is in the harbour of this town? " * 20}]
openai = dict(model="openai/" + model, api_base=url + "/v1", api_key="none", max_tokens=4, messages=say)
claude = dict(model="anthropic/" + model, api_base=url, api_key="none", max_tokens=4, messages=text)
for _ in range(3):
    assert litellm.completion(**openai).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**openai, stream=True) if chunk.choices)
    assert litellm.completion(**claude).choices[0].message.content
