package template

import (
	"html"
	"regexp"
	"sort"
	"strings"
	"sync"
	"unicode/utf8"
)

// Filters for HTML and URLs. Chat templates use little of this ("safe" above all), but Jinja2 has it.

func safeFilter(s *state, v Value, _ []Value) Value   { return toMarkup(s, v) }
func escapeFilter(s *state, v Value, _ []Value) Value { return escapeValue(s, v) }

func forceEscapeFilter(s *state, v Value, _ []Value) Value {
	return markup(escapeHTML(toStr(s, v)))
}

func stripTagsFilter(s *state, v Value, _ []Value) Value { return String(stripTags(s, toStr(s, v))) }

// stripTags removes comments, then tags, joins the words by single blanks and resolves entities.
func stripTags(s *state, text string) string {
	for _, mark := range [][2]string{{"<!--", "-->"}, {"<", ">"}} {
		var b strings.Builder
		for {
			start := strings.Index(text, mark[0])
			if start < 0 {
				break
			}
			end := strings.Index(text[start:], mark[1])
			if end < 0 {
				break
			}
			b.WriteString(text[:start])
			text = text[start+end+len(mark[1]):]
		}
		b.WriteString(text)
		text = b.String()
	}
	s.grow(2 * len(text))
	return unescapeHTML(strings.Join(strings.FieldsFunc(text, isPySpace), " "))
}

func unescapeHTML(text string) string { return html.UnescapeString(text) }

// quoteURL percent-encodes everything but letters, digits, "_.-~" and what safe holds.
func quoteURL(text, safe string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if isAlnumASCII(rune(c)) || strings.IndexByte("_.-~", c) >= 0 || strings.IndexByte(safe, c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

func urlEncodeFilter(s *state, v Value, _ []Value) Value {
	if v.IsString() || !iterable(v) {
		return s.str(quoteURL(toStr(s, v), "/"))
	}
	if d := v.Dict(); d != nil {
		v = object(&dictView{d, 'i'})
	}
	var parts []string
	for it := iterate(s, v); ; {
		pair, ok := it.next(s)
		if !ok {
			break
		}
		kv := unpack(s, pair, 2)
		quoted := quoteURL(toStr(s, kv[0]), "") + "=" + quoteURL(toStr(s, kv[1]), "")
		s.grow(len(quoted))
		parts = append(parts, strings.ReplaceAll(quoted, "%20", "+"))
	}
	return String(strings.Join(parts, "&"))
}

func xmlAttrFilter(s *state, v Value, a []Value) Value {
	d := v.Dict()
	if d == nil {
		if v.kind == KindUndefined {
			failUndefined(v)
		}
		raise(attributeError, "'%s' object has no attribute 'items'", v.typeName())
	}
	var parts []string
	for _, e := range d.entries {
		if e.Value.IsNone() || e.Value.kind == KindUndefined {
			continue
		}
		if !e.Key.IsString() {
			raise(typeError, "expected string or bytes-like object, got '%s'", e.Key.typeName())
		}
		if strings.ContainsAny(e.Key.str, " \t\n\r\f\v/>=") {
			raise(valueError, "Invalid character in attribute name: %s", quotePython(e.Key.str))
		}
		parts = append(parts, escapeValue(s, e.Key).str+`="`+escapeValue(s, e.Value).str+`"`)
	}
	out := strings.Join(parts, " ")
	if out != "" && flag(a[0], true) {
		out = " " + out
	}
	s.grow(len(out))
	if s.autoescape {
		return markup(out)
	}
	return String(out)
}

// urlizePatterns are the expressions of jinja2.utils.urlize, compiled on first use.
var urlizePatterns = sync.OnceValue(func() (p struct{ web, mail, scheme, head, tail *regexp.Regexp }) {
	const w = `[\p{L}\p{N}_%-]`
	p.web = regexp.MustCompile(`(?i)^((https?://|www\.)((` + w + `+\.)+)?([a-z]{2,63}|xn--[\p{L}\p{N}_%]{2,59})` +
		`|(` + w + `{2,63}\.)+(com|net|int|edu|gov|org|info|mil)` +
		`|(https?://)((\d{1,3}(\.\d{1,3}){3})|(\[([\da-f]{0,4}:){2}([\da-f]{0,4}:?){1,6}])))` +
		`(:\d{1,5})?([/?#]\S*)?$`)
	p.mail = regexp.MustCompile(`^\S+@[\p{L}\p{N}_][\p{L}\p{N}_.-]*\.[\p{L}\p{N}_]+$`)
	p.scheme = regexp.MustCompile(`^([\p{L}\p{N}_.+-]{2,}:(/){0,2})$`)
	p.head = regexp.MustCompile(`^([(<]|&lt;)+`)
	p.tail = regexp.MustCompile(`([)>.,\n]|&gt;)+$`)
	return p
})

// urlizeFilter turns URLs and mail addresses in text into links.
func urlizeFilter(s *state, v Value, a []Value) Value {
	p := urlizePatterns()
	rels := map[string]bool{"noopener": true}
	if given(a[3]) {
		for _, r := range strings.FieldsFunc(text(a[3]), isPySpace) {
			rels[r] = true
		}
	}
	if flag(a[1], false) {
		rels["nofollow"] = true
	}
	var names []string
	for r := range rels {
		names = append(names, r)
	}
	sort.Strings(names)
	attrs := ` rel="` + escapeHTML(strings.Join(names, " ")) + `"`
	if given(a[2]) && truth(a[2]) {
		attrs += ` target="` + escapeValue(s, a[2]).str + `"`
	}
	var schemes []string
	if given(a[4]) {
		for _, e := range collect(s, a[4]) {
			if !p.scheme.MatchString(text(e)) {
				raise(filterArgError, "%s is not a valid URI scheme prefix.", quotePython(e.str))
			}
			schemes = append(schemes, e.str)
		}
	}
	trim := func(u string) string {
		if given(a[0]) && utf8.RuneCountInString(u) > integer(a[0]) {
			return slice(s, String(u), None, a[0], None).str + "..."
		}
		return u
	}
	var b strings.Builder
	for rest := escapeValue(s, v).str; rest != ""; {
		n := strings.IndexFunc(rest, isPySpace)
		if n == 0 {
			r, size := utf8.DecodeRuneInString(rest)
			b.WriteRune(r)
			rest = rest[size:]
			continue
		}
		if n < 0 {
			n = len(rest)
		}
		s.step(n)
		b.WriteString(linkWord(rest[:n], attrs, schemes, trim))
		s.grow(b.Len() / 8)
		rest = rest[n:]
	}
	if s.autoescape {
		return markup(b.String())
	}
	return String(b.String())
}

// linkWord makes a link of one word if it is a URL or an address, leaving the punctuation around it outside.
func linkWord(word, attrs string, schemes []string, trim func(string) string) string {
	p := urlizePatterns()
	head := p.head.FindString(word)
	middle := word[len(head):]
	tail := ""
	for _, end := range []string{")", ">", ".", ",", "\n", "&gt;"} {
		if strings.HasSuffix(middle, end) {
			tail = p.tail.FindString(middle)
			middle = middle[:len(middle)-len(tail)]
			break
		}
	}
	for _, pair := range [][2]string{{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}} {
		open := strings.Count(middle, pair[0])
		if open <= strings.Count(middle, pair[1]) {
			continue
		}
		for range min(open, strings.Count(tail, pair[1])) {
			end := strings.Index(tail, pair[1]) + len(pair[1])
			middle, tail = middle+tail[:end], tail[end:]
		}
	}
	link := func(href, shown string) string { return `<a href="` + href + `"` + attrs + `>` + shown + `</a>` }
	switch {
	case p.web.MatchString(middle):
		if strings.HasPrefix(middle, "https://") || strings.HasPrefix(middle, "http://") {
			middle = link(middle, trim(middle))
		} else {
			middle = link("https://"+middle, trim(middle))
		}
	case strings.HasPrefix(middle, "mailto:") && p.mail.MatchString(middle[7:]):
		middle = `<a href="` + middle + `">` + middle[7:] + `</a>`
	case strings.Contains(middle, "@") && !strings.HasPrefix(middle, "www.") &&
		!strings.HasPrefix(middle, "@") && !strings.Contains(middle, ":") && p.mail.MatchString(middle):
		middle = `<a href="mailto:` + middle + `">` + middle + `</a>`
	default:
		for _, scheme := range schemes {
			if middle != scheme && strings.HasPrefix(middle, scheme) {
				middle = link(middle, middle)
			}
		}
	}
	return head + middle + tail
}
