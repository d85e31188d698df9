package template

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/golden"
)

// TestFacts renders generated templates and compares them with the real Jinja2's results; see testdata/README.md.
func TestFacts(t *testing.T) {
	var facts []struct {
		T   string          `json:"t"`
		Res referenceResult `json:"r"`
	}
	golden.JSON(t, &facts, "testdata/facts.json.gz")
	vars := varsOf(mustJSON(t, []byte(makerVars)))
	absent := 0
	for _, fact := range facts {
		switch err := compare(fact.T, vars, fact.Res); {
		case isUnsupported(err):
			absent++
		case err != nil:
			t.Error(err)
		}
	}
	t.Logf("%d facts, %d of them ask for what is not supported", len(facts), absent)
	if len(facts)-absent < 2500 {
		t.Errorf("%d of %d facts were compared, want the thousands of the file", len(facts)-absent, len(facts))
	}
}

// TestRules checks rules of chat templates by hand, each with the reason why it is easy to get wrong.
func TestRules(t *testing.T) {
	for _, c := range []struct{ why, src, want string }{
		{"set in a loop does not leak", `{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}`, "1"},
		{"a namespace does", `{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}`, "2"},
		{"set in an if leaks", `{% if true %}{% set x = 2 %}{% endif %}{{ x }}`, "2"},
		{"dict methods win over keys", `{{ {'items': 1}.items is callable }}{{ {'items': 1}['items'] }}`, "True1"},
		{"Markup escapes what it meets", `{{ 'a' | safe + '<' }}{{ '<' + ('a' | safe) }}`, "a&lt;&lt;a"},
		{"tojson is no Markup", `{{ {'a': '<'} | tojson + '<' }}`, `{"a": "<"}<`},
		{"else runs when every round was cut short", `{% for i in [1] %}{% continue %}{% else %}e{% endfor %}`, "e"},
		{"private attributes print nothing", `{{ ''.__class__ }}{{ {}.update }}`, ""},
		{"blank lines around tags go", "a\n  {% if true %}\n b\n  {% endif %}\nc\n", "a\n b\nc"},
		{"a filtered loop counts what passes", `{% for i in [1,2,3] if i != 2 %}{{ loop.index }}{{ loop.last }}{% endfor %}`, "1False2True"},
		{"generation is a scope", `{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}`, "1"},
		{"a generator is true and used up once", `{% set g = [1,2]|map('string') %}{{ g is sequence }}{{ g|join }}{{ g|join }}{{ 'y' if g }}`,
			"False12y"},
		{"1, 1.0 and true are one key", `{{ {1: 'a', 1.0: 'b', true: 'c'} }}`, "{1: 'c'}"},
		{"a macro sees what is set after it", `{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}`, "1"},
		{"a filter of a loop is asked when an element's turn comes",
			`{% set ns = namespace(n=0) %}{% for i in [1,2,3] if ns.n < 2 %}{% set ns.n = i %}{{ i }}{% endfor %}`, "12"},
		{"what there is not fails only where it runs", `{% if false %}{{ 1|from_json }}{{ 1 is nosuch }}{{ 2 ** 3 }}{{ x.encode() }}` +
			`{{ [1]|map('nosuch')|list }}{{ [1]|select('nosuch')|list }}{% include 'x' %}{% with a = 1 %}b{% endwith %}` +
			`{% for i in [] recursive %}{% endfor %}{% set y | frob %}z{% endset %}{{ 1 < 2 < 3 }}{{ x[1, 2] }}{{ cycler(1) }}` +
			`{{ 'a'|a.b }}{% block c %}d{% endblock c %}{{ x[1:2, 3] }}` +
			`{{ '\N{BULLET}\ud800' }}{% filter upper %}e{% endfilter %}{% import 'm' as n %}{% endif %}ok`, "ok"},
		{"places are counted in characters", `{{ 'éaéa'.rfind('a') }}{{ 'éaéa'.find('a', 2) }}{{ 'éaéa'.rfind('a', 0, -1) }}{{ 'a'.rfind('b') }}` +
			`{{ 'éaéa'.rindex('é') }}{{ 'aaa'.count('a', 1) }}{{ 'abc'.startswith('b', 1) }}{{ ''.find('', 1) }}`, "331-122True-1"},
		{"what varargs and kwargs hold", `{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m() }}`,
			"1(2,){'x': 3}(){}"},
		{"parts and lines", `{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'ab'.rpartition('=') }}` +
			`{{ 'a\n\nb\r\n'.splitlines(true) }}{{ ' a b  c '.rsplit(none, 1) }}{{ ' a b '.rsplit() }}`,
			`('a', '=', 'b=c')('a=b', '=', 'c')('', '', 'ab')['a\n', '\n', 'b\r\n'][' a b', 'c']['a', 'b']`},
		{"padding", `{{ 'ab'.center(5, '*') }}{{ 'abc'.center(6, '*') }}{{ '-5'.zfill(4) }}{{ 'é'.ljust(2, '.') }}{{ 'é'.rjust(2, '.') }}`,
			"**ab**abc**-005é..é"},
		{"escapes by number, and what is none", `{{ '\101\0x\q\é\€\😀' }}`, "A\x00x\\q\\xe9\\u20ac\\U0001f600"},
		{"long integers are printed", `{{ 99999999999999999999 }} {{ 0xffffffffffffffffffff }}{{ ' t' if 1_000_000_000_000_000_000_000 }}`,
			"99999999999999999999 1208925819614629174706175 t"},
		{"zero has a sign in a quotient", `{{ 0 / -1 }}`, "-0.0"},
		{"arguments come out of lists and dicts",
			`{% macro m(a, b='-') %}{{ a }}{{ b }};{% endmacro %}{{ m(*[1, 2]) }}{{ m(1, *[2]) }}{{ m(*'xy') }}{{ m(*{'k': 1}) }}` +
				`{{ m(**{'b': 3, 'a': 4}) }}{{ m(*[5], **{'b': 6}) }}{{ m(*[], a=7, **{}) }}{{ m(*[8], b=9,) }}`, "12;12;xy;k-;43;56;7-;89;"},
		{"an undefined list has no elements", `{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*u) }}`, ""},
		{"filters, tests and callers take them too",
			`{{ 'x' | replace(*['x', 'y']) }}{{ 'b' is in(*['abc']) }}{% macro w(x) %}{{ caller(*x) }}{% endmacro %}` +
				`{% call(p, q) w([1, 2]) %}{{ p ~ q }}{% endcall %}`, "yTrue12"},
		{"call blocks have parameters", `{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}`, "12"},
	} {
		tmpl, err := Compile(c.src, Options{})
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.why, err)
			continue
		}
		if got, err := tmpl.Render(nil, nil); err != nil || string(got) != c.want {
			t.Errorf("%s: %s gives %q, %v; want %q", c.why, c.src, got, err, c.want)
		}
	}
}

// TestErrors checks the type, the line and the message of errors.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"{{ raise_exception('no ' ~ 1) }}", "template: line 1: raised: no 1"},
		{"a\n\n{{ x.y }}", "template: line 3: 'x' is undefined"},
		{"\n{{ 'a' + 1 }}", "template: line 2: unsupported operand type(s) for +: 'str' and 'int'"},
		{"{{ {}.update({}) }}", "template: line 1: access to attribute 'update' of 'dict' object is unsafe."},
		{"a\n{% frob %}", "template: line 2: Encountered unknown tag 'frob'."},
		{"{{ 1 | frob }}", "template: line 1: No filter named 'frob' found."},
		{"{% if x", "template: line 1: expected token 'end of statement block', got 'end of template'"},
		{"{{ 'a\n}}", `template: line 1: unexpected char "'" at 3`},
		{"{% for x in y %}", "template: line 1: Unexpected end of template. Jinja was looking for the following tags: 'endfor' or 'else'."},
		{"{% include 'x' %}", "template: line 1: {% include %} is not supported in chat templates"},
		{"{{ 1 | pprint }}", "template: line 1: the filter pprint is not supported in chat templates"},
		{"{{ 1 is divisibleby(2) }}", "template: line 1: the test divisibleby is not supported in chat templates"},
		{"{{ 'a'.encode() }}", "template: line 1: str.encode is not supported in chat templates"},
		{"{{ '{:{}}'.format(1, 2) }}", "template: line 1: the field {: of str.format is not supported in chat templates"},
		{"{{ 9223372036854775807 + 1 }}", "template: line 1: an integer of more than 64 bits is not supported in chat templates"},
		{"{{ '%0999999999d' % 1 }}", "template: line 1: the format '%0999999999d' is not supported in chat templates"},
		{"{{ 2 ** 3 }}", "template: line 1: ** is not supported in chat templates"},
		{"{{ f(*x, *y) }}", "template: line 1: invalid syntax for function call expression"},
		{"{{ f(*x, y) }}", "template: line 1: invalid syntax for function call expression"},
		{"{{ f(**x, y=1) }}", "template: line 1: invalid syntax for function call expression"},
		{"{{ dict(a=1, **{'a': 2}) }}", "template: line 1: got multiple values for keyword argument 'a'"},
		{"{{ dict(**{1: 2}) }}", "template: line 1: keywords must be strings"},
		{"{{ [1] | map('pprint') | list }}", "template: line 1: the filter pprint is not supported in chat templates"},
		{"{{ [1] | map('a.b') | list }}", "template: line 1: No filter named 'a.b' found."},
		{"{{ [1] | select(2) | list }}", "template: line 1: a test named by a int is not supported in chat templates"},
		{"{{ 1 is escaped }}", "template: line 1: the test escaped is not supported in chat templates"},
		{"{{ 'a'.index('b') }}", "template: line 1: substring not found"},
		{"{{ 1 | int(0, 2) }}", "template: line 1: the argument base of int is not supported in chat templates"},
		{"{{ range(3) }}", "template: line 1: str of a range is not supported in chat templates"},
		{"{{ 1 < x < 3 }}", "template: line 1: a chain of comparisons is not supported in chat templates"},
		{"{% set x | upper %}a{% endset %}", "template: line 1: a filter of a set block is not supported in chat templates"},
		{"{% if x %}{% elif cycler(1) %}{% endif %}", "template: line 1: cycler() is not supported in chat templates"},
		{"{{ 2.5 // 1 }}", "template: line 1: // of a float is not supported in chat templates"},
		{"{% for x in y recursive %}{% endfor %}", "template: line 1: a recursive loop is not supported in chat templates"},
		{`{{ 'a' '\N{BULLET}' }}`, `template: line 1: the escape \N{BULLET} is not supported in chat templates`},
		{"{{ (1).real }}", "template: line 1: int.real is not supported in chat templates"},
		{"{{ [1.5][0].is_integer }}", "template: line 1: float.is_integer is not supported in chat templates"},
		{"{{ range(3).stop }}", "template: line 1: range.stop is not supported in chat templates"},
		{"{% break %}", "template: line 1: break and continue need a loop around them"},
	} {
		tmpl, err := Compile(c.src, Options{})
		if err == nil {
			_, err = tmpl.Render(nil, nil)
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: error %q, want %q", c.src, err, c.want)
		}
	}
	tmpl, _ := Compile("{{ raise_exception('m') }}", Options{})
	_, err := tmpl.Render(nil, nil)
	var raised *RaisedError
	if !errors.As(err, &raised) || raised.Message != "m" {
		t.Errorf("raise_exception gave %#v, want a *RaisedError with the message", err)
	}
}

// TestLimits renders templates that would run forever or fill the memory.
func TestLimits(t *testing.T) {
	for _, src := range []string{
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
		"{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
		"{{ 'abc' * 1000000000 }}",
		"{{ [1] * 1000000000 }}",
		"{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(1000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(1000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(1000) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(190) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(190) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(190) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == ns.s[:] }}",
		"{% set t = 'ab' * 4000000 %}{% for i in range(99999) %}{{ 'c' in t }}{{ t.count('c') }}{{ t|length }}{% endfor %}",
		"{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'.replace('', 'b' * 60000000) }}",
		"{{ ('a' * 1000000)|list|map('upper')|list|length }}{% for i in range(100000) %}{{ ('a' * 1000)|list|length }}{% endfor %}",
	} {
		tmpl, err := Compile(src, Options{Limits: Limits{OutputBytes: 16 << 20}})
		if err != nil {
			t.Errorf("%s: got %v, want no error", src, err)
			continue
		}
		start := time.Now()
		if _, err := tmpl.Render(nil, nil); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v, want ErrLimit", src, err)
		}
		if d := time.Since(start); d > 2*time.Minute { // on a busy machine; a second alone
			t.Errorf("%s took %v to reach its limit, want at most %v", src, d, 2*time.Minute)
		}
	}
}

// TestNesting compiles sources with unbounded nesting or chains.
func TestNesting(t *testing.T) {
	for _, part := range []string{"(", "[", "{1:", "-", "not ", "1 if ", "{% if 1 %}", "{% for x in y %}"} {
		src := strings.Repeat(part, 100_000)
		if !strings.HasPrefix(part, "{%") {
			src = "{{ " + src + " }}"
		}
		if _, err := Compile(src, Options{}); err == nil {
			t.Errorf("%q repeated compiles: got %v, want an error", part, err)
		}
	}
	for _, part := range []string{"+ 1 ", "and 1 ", "if 1 ", "| string ", "[0]", ".x", "* 1 ", "** 1 ", "(1)", "is string "} {
		if _, err := Compile("{{ 1 "+strings.Repeat(part, 100_000)+" }}", Options{}); err == nil {
			t.Errorf("%q repeated 100000 times compiles: the tree would be as deep; got %v, want an error", part, err)
		}
	}
}

// TestConcurrent renders one template from several goroutines.
func TestConcurrent(t *testing.T) {
	tmpl, err := Compile(benchTemplate, Options{})
	if err != nil {
		t.Fatal(err)
	}
	chat := Chat{Messages: mustJSON(t, []byte(benchChat)), Vars: Vars{{"add_vision_id", pyTrue}}}
	want, err := tmpl.Apply(nil, &chat)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if got, err := tmpl.Apply(nil, &chat); err != nil || string(got) != string(want) {
					t.Errorf("got %q, %v; want %q", got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestStrftimeZone: dates are UTC's, whatever the zone of this machine.
func TestStrftimeZone(t *testing.T) {
	far := func() time.Time { return noon().In(time.FixedZone("far", 14*3600)) }
	tmpl, err := Compile("{{ strftime_now('%d %b %Y') }}", Options{Now: far})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := tmpl.Render(nil, nil); string(got) != "10 Jul 2025" {
		t.Errorf("got %q, want UTC's date, 10 Jul 2025", got)
	}
}

func TestFromJSON(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{`{"a":1,"b":2,"a":3}`, `{"a": 3, "b": 2}`},
		{` [1, 1.0, 1e2, -0, -0.0, 12345678901234567890, 1e999] `, `[1, 1.0, 100.0, 0, -0.0, 12345678901234567890, Infinity]`},
		{`"\u00e9\ud83d\ude42\n\/"`, `"é🙂\n/"`},
		{`{"":{},"x":[],"y":null}`, `{"": {}, "x": [], "y": null}`},
	} {
		v, err := FromJSON(c.raw)
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.raw, err)
			continue
		}
		if got, err := AppendJSON(nil, v); err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.raw, got, err, c.want)
		}
	}
	for _, raw := range []string{"", "{", "[1,]", `{"a":1,}`, "01", "1.", ".5", "+1", "NaN", "Infinity", "tru", `"\ud800"`,
		`"\ud800\u0041"`, "\"\xff\"", "\"\n\"", `"\x"`,
		"1 2", `{1:2}`, "'a'", strings.Repeat("[", 100_000)} {
		if v, err := FromJSON(raw); err == nil {
			t.Errorf("%.20q gives %v, want an error", raw, v)
		}
	}
}

// TestFormats covers the engines' content format detection and the list of variables that a template uses.
func TestFormats(t *testing.T) {
	loop := func(iter string) string {
		return "{% for message in messages %}{% for part in " + iter + " %}{{ part.text }}{% endfor %}{% endfor %}"
	}
	macro := func(params, args string) string {
		over := params[strings.LastIndexByte(params, ' ')+1:]
		return "{% macro show(" + params + ") %}{% for p in " + over +
			" %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(" + args + ") }}{% endfor %}"
	}
	for _, c := range []struct {
		src               string
		vllm, sglang, trt Format
	}{
		{"{% for m in messages %}{{ m.content }}{% endfor %}", FormatString, FormatString, FormatString},
		{loop("message.content"), FormatOpenAI, FormatOpenAI, FormatString},
		{loop("message['content'] | list"), FormatOpenAI, FormatOpenAI, FormatString},
		{loop("other.content"), FormatString, FormatString, FormatString},
		{loop("content"), FormatOpenAI, FormatString, FormatString},
		{"{% set rest = messages[1:] %}{% for x in rest|list %}{% for p in x.content if p.type == 'text' %}{% endfor %}{% endfor %}",
			FormatOpenAI, FormatString, FormatOpenAI},
		{"{% set a, b = messages, 1 %}" + loop("message.content"), FormatOpenAI, FormatOpenAI, FormatString},
		{"{% set ns.x = messages %}" + loop("message.content"), FormatString, FormatOpenAI, FormatString},
		{"{# an image #}", FormatString, FormatOpenAI, FormatString},
		{loop("messages[0].content"), FormatString, FormatString, FormatString},
		{macro("content", "m.content"), FormatOpenAI, FormatString, FormatString},
		{macro("content", "'text'"), FormatString, FormatString, FormatString},
		{macro("c", "m.content | list"), FormatOpenAI, FormatString, FormatString},
		{macro("c", "c=m['content']"), FormatOpenAI, FormatString, FormatString},
		{macro("c", "d=m.content"), FormatString, FormatString, FormatString},
		{macro("a, c", "m.content"), FormatString, FormatString, FormatString},
		{strings.Replace(macro("c", "m.content"), "p in c", "p, q in c", 1), FormatString, FormatString, FormatString},
	} {
		tmpl, err := Compile(c.src, Options{})
		if err != nil {
			t.Fatal(err)
		}
		v, s, r := tmpl.ContentFormat(), tmpl.SGLangFormat(), tmpl.TensorRTFormat()
		if v != c.vllm || s != c.sglang || r != c.trt {
			t.Errorf("%s: vLLM %v, SGLang %v, TensorRT-LLM %v; want %v, %v, %v", c.src, v, s, r, c.vllm, c.sglang, c.trt)
		}
	}
	tmpl, err := Compile("{% set own = 1 %}{{ own }}{% if enable_thinking is defined %}{% for m in messages %}{{ m.x }}{{ "+
		"flag }}{% endfor %}{% endif %}{{ range(2) }}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"enable_thinking": true, "messages": true, "flag": true, "own": false,
		"m": false, "range": false, "x": false} {
		if tmpl.Uses(name) != want {
			t.Errorf("Uses(%q) = %v, want %v", name, !want, want)
		}
	}
}

// FuzzRender compiles and renders any source: it must end, within its limits, without a panic of the Go runtime.
func FuzzRender(f *testing.F) {
	f.Add(benchTemplate)
	f.Add("{{'\xb3'|capitalize}}") // no UTF-8
	for i := range 40 {
		g := newMaker(uint64(i))
		f.Add(g.template(2))
		f.Add("{{ " + g.expr(2) + " }}")
		f.Add("{{ " + g.detail() + " }}")
	}
	v, err := FromJSON(makerVars)
	if err != nil {
		f.Fatal(err)
	}
	vars := varsOf(v)
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := Compile(src, Options{Now: fixedClock, Limits: Limits{Steps: 20_000, OutputBytes: 1 << 18}})
		if err != nil {
			return
		}
		out, err := tmpl.Render([]byte("x"), vars)
		var bug *Error
		if errors.As(err, &bug) && bug.internal {
			t.Fatalf("%q: %v", src, err)
		}
		if len(out) == 0 || out[0] != 'x' {
			t.Fatalf("%q: dst was not kept: got %q, want some of them, [0] 'x'", src, out)
		}
		again, err2 := tmpl.Render([]byte("x"), vars)
		if string(again) != string(out) || (err == nil) != (err2 == nil) {
			t.Fatalf("%q: the second rendering differs: %q, %v; first %q, %v, want string(again) == string(out), (err == nil) == (err2 == nil)",
				src, again, err2, out, err)
		}
		tmpl.ContentFormat()
		tmpl.TensorRTFormat()
	})
}

// FuzzFromJSON compares with encoding/json on valid JSON, and checks that values survive writing and reading.
func FuzzFromJSON(f *testing.F) {
	f.Add(makerVars)
	f.Add(benchChat)
	f.Add(`"\ud83d\ude42"`)
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := FromJSON(raw)
		if err != nil {
			return
		}
		if !json.Valid([]byte(raw)) {
			t.Fatalf("%q is no JSON, want json.Valid([]byte(raw))", raw)
		}
		out, err := AppendJSON(nil, v)
		if err != nil || strings.Contains(string(out), "Infinity") {
			return
		}
		again, err := FromJSON(string(out))
		if err != nil {
			t.Fatalf("%q was written as %q, which does not read: got %v, want no error", raw, out, err)
		}
		if second, _ := AppendJSON(nil, again); string(second) != string(out) {
			t.Fatalf("%q: %q, then %q", raw, out, second)
		}
	})
}
