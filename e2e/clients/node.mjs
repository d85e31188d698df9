// The stock OpenAI and Anthropic clients of Node: node.mjs URL MODEL IMAGE.
import assert from 'node:assert'
import {readFileSync} from 'node:fs'
import {createRequire} from 'node:module'

const have = createRequire(process.env.CLIENTS + '/node/')
const OpenAI = have('openai').default
const Anthropic = have('@anthropic-ai/sdk').default
const [url, model, file] = process.argv.slice(2)
const image = 'data:image/png;base64,' + readFileSync(file).toString('base64')
const messages = [{role: 'user', content: [{type: 'image_url', image_url: {url: image}}, {type: 'text', text: 'What is this?'}]}]
const text = [{role: 'user', content: 'What is in the harbour of this town? '.repeat(20)}]
const openai = new OpenAI({baseURL: url + '/v1', apiKey: 'none', maxRetries: 0})
const claude = new Anthropic({baseURL: url, apiKey: 'none', maxRetries: 0})
for (let i = 0; i < 3; i++) {
  const whole = await openai.chat.completions.create({model, messages, max_tokens: 4})
  assert(whole.choices[0].message.content)
  let streamed = ''
  for await (const chunk of await openai.chat.completions.create({model, messages, max_tokens: 4, stream: true})) {
    streamed += chunk.choices[0]?.delta?.content ?? ''
  }
  assert.equal(streamed, whole.choices[0].message.content)
  assert((await openai.responses.create({model, input: text, max_output_tokens: 4})).output_text)
  const said = await claude.messages.create({model, messages: text, max_tokens: 4})
  assert.equal(await claude.messages.stream({model, messages: text, max_tokens: 4}).finalText(), said.content[0].text)
}
