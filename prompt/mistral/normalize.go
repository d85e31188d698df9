package mistral

import (
	"math"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// normalize brings the messages into the form in which they are encoded (InstructRequestNormalizer): consecutive messages of one
// role are merged, except system messages and tool results. Up to version 3 the system messages are taken out and joined to one
// text.
func (t *Tokenizer) normalize(list []message) (out []message, system string) {
	if t.version < 7 {
		system = t.systemPrompt(list)
	}
	var calls []string // ids of the calls since the last results
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].role == list[0].role {
			n++
		}
		group := list[:n]
		list = list[n:]
		switch group[0].role {
		case "system":
			if t.version >= 7 {
				for i := range group {
					out = append(out, t.merge(group[i:i+1]))
				}
			}
		case "tool":
			from := len(out)
			for i := range group {
				m := t.merge(group[i : i+1])
				m.callID, m.name = group[i].callID, group[i].name
				out = append(out, m)
			}
			if t.version >= 11 {
				sortResults(out[from:], calls)
			}
			calls = nil
		default:
			m := t.merge(group)
			for i := range group {
				m.calls = append(m.calls, group[i].calls...)
				m.prefix = m.prefix || group[i].prefix
			}
			for _, c := range m.calls {
				calls = append(calls, c.id)
			}
			out = append(out, m)
		}
	}
	if t.version < 7 && (len(out) == 0 || out[0].role != "user") {
		out = slices.Insert(out, 0, message{role: "user", kind: body.Text})
	}
	return out, system
}

func (t *Tokenizer) systemPrompt(list []message) string {
	var texts []string
	for i := range list {
		if m := &list[i]; m.role == "system" && !m.empty() {
			texts = append(texts, t.merge(list[i:i+1]).text)
		}
	}
	return strings.Join(texts, "\n\n")
}

// merge joins the contents of messages of one role: adjacent texts become one, and a content that is all text becomes a plain text.
func (t *Tokenizer) merge(group []message) message {
	const betweenMessages = "\n\n"
	betweenChunks := "\n\n"
	if t.version >= 15 {
		betweenChunks = ""
	}
	m := message{role: group[0].role, kind: body.Text}
	var pieces []string // of the text that is being joined
	flush := func() (text string) {
		if len(pieces) == 1 {
			text = pieces[0]
		} else {
			text = strings.Join(pieces, "")
		}
		pieces = pieces[:0]
		return text
	}
	for i := range group {
		sep := betweenMessages
		if len(pieces) == 0 {
			sep = betweenChunks
		}
		add := func(text string) {
			if text == "" {
				return
			}
			if len(pieces) > 0 {
				pieces = append(pieces, sep)
			}
			pieces = append(pieces, text)
			sep = betweenChunks
		}
		if group[i].kind == body.Text {
			add(group[i].text)
			continue
		}
		for _, c := range group[i].chunks {
			if c.kind == textChunk {
				add(c.text)
				continue
			}
			if len(pieces) > 0 {
				m.chunks = append(m.chunks, chunk{text: flush()})
			}
			m.chunks = append(m.chunks, c)
		}
	}
	if m.chunks == nil {
		m.text = flush()
		return m
	}
	m.kind = body.List
	if len(pieces) > 0 {
		m.chunks = append(m.chunks, chunk{text: flush()})
	}
	return m
}

// sortResults puts tool results into the order of their calls; results without a call come last.
func sortResults(results []message, calls []string) {
	at := make(map[string]int, len(calls))
	for i, id := range calls {
		at[id] = i
	}
	rank := func(m message) int {
		if i, ok := at[m.callID]; ok {
			return i
		}
		return math.MaxInt
	}
	slices.SortStableFunc(results, func(a, b message) int { return rank(a) - rank(b) })
}

// parseJSON is json.loads; text that is not JSON remains text. It returns an error for JSON that only Python reads.
func parseJSON(text string) (template.Value, error) {
	trimmed := strings.Trim(text, " \t\r\n")
	switch trimmed { // Python's own extensions of JSON
	case "NaN":
		return template.Float(math.NaN()), nil
	case "Infinity":
		return template.Float(math.Inf(1)), nil
	case "-Infinity":
		return template.Float(math.Inf(-1)), nil
	}
	v, err := template.FromJSON(text)
	if err == nil {
		return v, nil
	}
	if trimmed != "" && strings.Contains(`{["`, trimmed[:1]) { // others are no JSON in Python either
		err = unread(text, err)
	} else {
		err = nil
	}
	return template.String(text), err
}
