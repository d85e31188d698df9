package mmhash

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
)

// What a client must not say. Some fields of a request are meant for routers and proxies in front of an engine: they name
// a medium in the engine's caches, choose a rank, or have a worker take KV blocks from an address. Whoever may send them
// reads other clients' pictures (vLLM serves the features of the first picture that it saw under a uuid), breaks the
// balance, or makes workers dial hosts. Clean finds each of them, wherever a body may hold it, and gives the edits that
// take it out. It needs no model and understands no prompt, so it works on every body that is JSON.
//
// It is only as good as the way here: what Envoy passes on without asking (Sightline down or too busy, other paths) is
// not cleaned.

// scope is a kind of place in a body.
type scope uint8

const (
	inBody    scope = 1 << iota // the request object
	inArgs                      // engine arguments below it
	inList                      // a list of messages, or of conversations
	inMessage                   // one message, or one input item
	inContent                   // a list of content parts
	inPart                      // one content part
	inMedia                     // the object that holds a medium's URL or data
	inNvext                     // NVIDIA Dynamo's extensions
	nowhere   scope = 0
)

// steering lists the fields and the scopes where they are taken out.
var steering = map[string]scope{
	"uuid":              inPart,                             // vLLM: the medium's name in all caches; "" counts as one (verified on 0.32.0)
	"mm_hashes":         inBody | inArgs | inPart | inMedia, // SGLang: the medium's identity; killed a Qwen3-VL server (0.5.23)
	"mm_content_hashes": inBody | inArgs,                    // SGLang: lets a trusted hit skip reading the file
	"content_hash":      inPart | inMedia,                   // SGLang, the same for one medium
	"multi_modal_uuids": inBody | inArgs,                    // vLLM and TensorRT-LLM, Python API

	"routed_dp_rank":         inBody | inArgs, // SGLang: chooses the rank
	"data_parallel_rank":     inBody | inArgs, // its older name; vLLM takes a header, which Envoy sets
	"disagg_prefill_dp_rank": inBody | inArgs, // SGLang: the same for the prefill side

	"kv_transfer_params":   inBody | inArgs, // vLLM: where KV blocks are taken from, by host and port
	"ec_transfer_params":   inBody | inArgs, // vLLM: the same for encoder outputs
	"disaggregated_params": inBody | inArgs, // TensorRT-LLM: the same, with an opaque state

	"backend_instance_id": inNvext, // Dynamo's front ends (1.6): the worker
	"decode_worker_id":    inNvext,
	"prefill_worker_id":   inNvext,
	"dp_rank":             inNvext,
	"prefill_dp_rank":     inNvext,
	"token_data":          inNvext, // the prompt's tokens, in place of the messages that the blocks are computed from
	"routing_constraints": inNvext,
	"router":              inNvext,

	"kv_cache_report_mode": inArgs, // vLLM: "full" tells a request's cached blocks to every event subscriber
}

// steeringPrefix begins SGLang's fields for prefill and decode workers: bootstrap_host, _port, _room and others.
const steeringPrefix = "bootstrap_"

// within says which scope the value of a key opens.
var within = map[scope]map[string]scope{
	inBody:    {"messages": inList, "input": inList, "system": inContent, "vllm_xargs": inArgs, "extra_args": inArgs, "nvext": inNvext},
	inMessage: {"content": inContent, "output": inContent},
	inPart: {"content": inContent, "output": inContent, "image_url": inMedia, "audio_url": inMedia, "input_audio": inMedia,
		"video_url": inMedia, "image_embeds": inMedia, "audio_embeds": inMedia, "source": inMedia, "file": inMedia},
}

const maxSteering = 4096 // fields taken out of one body

// Clean gives the edits that take the table's fields out of a scanned body: each a pair with its comma, every duplicate,
// escaped keys too, so that the body stays valid JSON. keepUUID leaves uuids where they are. The error is a *Refused by
// us: a content part with a uuid and no data, or more fields than anybody needs. removed, if set, is told each field by
// the table's name (bootstrap_* for that family), never by the client's. One pass over the skeleton.
func Clean(body *chat.Skeleton, keepUUID bool, removed func(field string)) ([]Edit, error) {
	c := cleaner{body: body, text: body.JSON(), keepUUID: keepUUID, removed: removed}
	if at := c.space(0); at < len(c.text) {
		c.value(at, inBody)
	}
	if c.refused != nil {
		return nil, c.refused
	}
	return c.edits, nil
}

// cleaner walks a skeleton, which is known to be valid JSON.
type cleaner struct {
	body     *chat.Skeleton
	text     string
	keepUUID bool
	removed  func(field string)
	edits    []Edit
	refused  error
}

// value reads the value that begins at i and gives the offset behind it.
func (c *cleaner) value(i int, in scope) int {
	switch c.text[i] {
	case '"':
		return c.stringEnd(i)
	case '{':
		switch in {
		case inList:
			return c.object(i, inMessage)
		case inContent:
			return c.object(i, inPart)
		case nowhere:
			return c.skip(i)
		}
		return c.object(i, in)
	case '[':
		if in == inList || in == inContent {
			return c.list(i, in)
		}
		return c.skip(i)
	}
	for i < len(c.text) && !strings.ContainsRune(",]} \t\r\n", rune(c.text[i])) {
		i++
	}
	return i
}

func (c *cleaner) list(i int, in scope) int {
	for {
		i = c.space(i + 1) // behind the bracket or comma
		if c.text[i] == ']' {
			return i + 1
		}
		i = c.space(c.value(i, in))
		if c.text[i] == ']' {
			return i + 1
		}
	}
}

// object removes the pairs of one object. A pair that goes takes the comma in front of it along, or, where nothing is
// kept in front, the one behind it.
func (c *cleaner) object(i int, in scope) int {
	var p partFacts
	kept := false        // a pair before this one stays
	lead, last := -1, -1 // where a removed run at the front begins; where the pair before ended
	for {
		if i = c.space(i + 1); c.text[i] == '}' {
			break
		}
		from := i
		i = c.stringEnd(i)
		key := c.text[from+1 : i-1]
		if strings.IndexByte(key, '\\') >= 0 {
			key = gjson.Parse(c.text[from:i]).String()
		}
		i = c.space(c.space(i) + 1) // the colon
		if c.steers(key, in) {
			p.uuid = p.uuid || key == "uuid" && c.text[i] != 'n'
			if c.removed != nil {
				c.removed(tableName(key))
			}
			to := c.value(i, nowhere)
			if kept {
				c.remove(last, to)
			} else if lead < 0 {
				lead = from
			}
			i, last = to, to
		} else {
			if lead >= 0 {
				c.remove(lead, from)
				lead = -1
			}
			at := i
			i = c.value(i, within[in][key])
			if in == inPart {
				p.note(key, c.text[at:i])
			}
			kept, last = true, i
		}
		if i = c.space(i); c.text[i] == '}' {
			break
		}
	}
	if lead >= 0 {
		c.remove(lead, last)
	}
	if p.uuid && !p.hasData() && c.refused == nil {
		c.refused = &Refused{Status: 400, Reason: "a content part has a uuid and no data: media are named by their content here", ByUs: true}
	}
	return i + 1
}

func (c *cleaner) steers(key string, in scope) bool {
	if key == "uuid" && c.keepUUID {
		return false
	}
	return steering[key]&in != 0 || in&(inBody|inArgs) != 0 && strings.HasPrefix(key, steeringPrefix)
}

func tableName(key string) string {
	if steering[key] == nowhere {
		return steeringPrefix + "*"
	}
	return strings.Clone(key) // it lies in the body's memory, which is used again
}

func (c *cleaner) remove(from, to int) {
	if len(c.edits) == maxSteering {
		c.refused = &Refused{Status: 400, Reason: fmt.Sprintf("more than %d fields that clients must not send", maxSteering), ByUs: true}
		return
	}
	c.edits = append(c.edits, Edit{From: c.body.BodyOffset(from), To: c.body.BodyOffset(to)})
}

func (c *cleaner) space(i int) int {
	for i < len(c.text) && (c.text[i] == ' ' || c.text[i] == '\n' || c.text[i] == '\t' || c.text[i] == '\r') {
		i++
	}
	return i
}

// stringEnd is behind the closing quote of the string that begins at i.
func (c *cleaner) stringEnd(i int) int {
	for i++; ; {
		q := i + strings.IndexByte(c.text[i:], '"')
		n := q
		for c.text[n-1] == '\\' {
			n--
		}
		if i = q + 1; (q-n)&1 == 0 {
			return i
		}
	}
}

// skip is behind the list or object that begins at i.
func (c *cleaner) skip(i int) int {
	for depth := 0; ; {
		switch c.text[i] {
		case '"':
			i = c.stringEnd(i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
}

// partFacts tells whether a content part holds anything but a name.
type partFacts struct {
	uuid  bool
	media [len(mediaKeys)]byte // first byte of the value; 0: no such key
	other bool
}

// mediaKeys in the order in which vLLM looks for them in a part with a uuid: the first one counts, null or not.
var mediaKeys = [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "prompt_embeds", "audio_url", "input_audio", "video_url"}

func (p *partFacts) note(key, value string) {
	for i, k := range mediaKeys {
		if k == key {
			p.media[i] = value[0]
			return
		}
	}
	switch key {
	case "text", "refusal", "thinking", "content", "output", "source", "file", "file_id", "file_url", "file_data":
		p.other = p.other || value[0] != 'n'
	}
}

func (p *partFacts) hasData() bool {
	for _, v := range p.media {
		if v != 0 {
			return v != 'n'
		}
	}
	return p.other
}

// Unread judges a body that Scan refused with err. Most such bodies no engine reads either: they go on as they are, nil.
// But Python's json, in front of most engines, takes NaN and Infinity, a byte order mark, UTF-16 and UTF-32, and encoded
// surrogates; and a body may be larger or deeper than what is read here. One that could carry a field of the table to
// an engine in such a form is a *Refused by us. Reads the body once a name, which is slow, and rare.
func Unread(body [][]byte, err error) error {
	var head [4]byte
	n := 0
	for _, p := range body {
		n += copy(head[n:], p)
	}
	switch {
	case errors.Is(err, chat.ErrJSON):
		lax := n > 0 && (bytes.IndexByte(head[:n], 0) >= 0 || head[0] >= utf8.RuneSelf) || contains(body, "NaN") || contains(body, "Infinity") ||
			!validUTF8(body)
		if lax {
			return &Refused{Status: 400, Reason: "body is not valid JSON in UTF-8 (RFC 8259: no byte order mark, no NaN or Infinity)", ByUs: true}
		}
	case contains(body, `\u00`) || contains(body, `"`+steeringPrefix) || mentions(body):
		return &Refused{Status: 400, Reason: err.Error() + ", and may hold fields that clients must not send", ByUs: true}
	}
	return nil
}

func mentions(body [][]byte) bool {
	for name := range steering {
		if contains(body, `"`+name+`"`) { // quoted: base64 holds short names by chance
			return true
		}
	}
	return false
}

// contains finds a short text in a body, also across its pieces.
func contains(body [][]byte, text string) bool {
	keep := len(text) - 1
	seam := make([]byte, 0, 2*keep) // the end of what was read, and the beginning of the next piece
	for _, p := range body {
		if bytes.Contains(p, []byte(text)) || bytes.Contains(append(seam, p[:min(len(p), keep)]...), []byte(text)) {
			return true
		}
		if len(p) >= keep {
			seam = append(seam[:0], p[len(p)-keep:]...)
			continue
		}
		seam = append(seam, p...)
		seam = append(seam[:0], seam[max(0, len(seam)-keep):]...)
	}
	return false
}

// validUTF8 reports whether a body is UTF-8, also across its pieces.
func validUTF8(body [][]byte) bool {
	var rest []byte // an unfinished character
	for _, p := range body {
		for len(rest) > 0 && len(p) > 0 && !utf8.FullRune(rest) {
			rest, p = append(rest, p[0]), p[1:]
		}
		if len(rest) > 0 && utf8.FullRune(rest) {
			if !utf8.Valid(rest) {
				return false
			}
			rest = rest[:0]
		}
		cut := len(p)
		for i := 1; i <= min(3, len(p)); i++ {
			if c := p[len(p)-i]; utf8.RuneStart(c) {
				if !utf8.FullRune(p[len(p)-i:]) {
					cut = len(p) - i
				}
				break
			}
		}
		if !utf8.Valid(p[:cut]) {
			return false
		}
		rest = append(rest, p[cut:]...)
	}
	return len(rest) == 0
}
