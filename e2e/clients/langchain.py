"""LangChain's chat models for OpenAI and Anthropic, whole and streamed: langchain.py URL MODEL IMAGE."""
import base64, sys
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

url, model, file = sys.argv[1:]
image = "data:image/png;base64," + base64.b64encode(open(file, "rb").read()).decode()
say = [("human", [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "What is this?"}])]
text = [("human", "What is in the harbour of this town? " * 20)]
openai = ChatOpenAI(model=model, base_url=url + "/v1", api_key="none", max_tokens=4, max_retries=0)
claude = ChatAnthropic(model=model, base_url=url, api_key="none", max_tokens=4, max_retries=0)
for _ in range(3):
    assert openai.invoke(say).content
    assert "".join(chunk.content for chunk in openai.stream(say))
    assert claude.invoke(text).content
    assert "".join(str(chunk.content) for chunk in claude.stream(text))
