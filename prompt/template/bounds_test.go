package template

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// large are expressions that make much of a large input, by the names of the filters, methods, operators and functions in them.
// Inputs of about 1 MiB: x, ASCII without blanks; nl, line ends; bl, words; ctl, characters that are escaped; amp, ones that HTML
// escapes; up, ones that grow in upper case; tags, "</think>"; l and d, a list and a dict of many elements; xs, one text many times.
var large = map[string][]string{
	"split":      {`tags.split('</think>')`, `x.split('x')`, `bl.split()`, `bl.split(none, 5)`, `('x' * 1000000).split('x')|length`},
	"rsplit":     {`x.rsplit('x')`, `tags.rsplit('</think>', 100000)`},
	"replace":    {`x.replace('x', 'yyyyyyyyyyyyyyyyyy')`, `x.replace('', x)`, `x|replace('x', x)`},
	"join":       {`x.join(x)`, `x.join(l)`, `x|join(x)`, `l|join(x)`, `xs|join`, `''.join(xs)`},
	"upper":      {`up.upper()`, `xs|map('upper')|list`, `xs|map('upper')|join`},
	"lower":      {`up|lower`, `x.lower()`, `('Σ' * 500000)|lower`},
	"capitalize": {`x.capitalize()`, `x|capitalize`},
	"title":      {`bl.title()`, `bl|title`},
	"isalpha":    {`x.isalpha()`}, "isdigit": {`('1' * 1000000).isdigit()`}, "isspace": {`nl.isspace()`},
	"strip": {`x.strip(x)`, `bl.strip()`}, "lstrip": {`x.lstrip(x)`}, "rstrip": {`x.rstrip(x)`}, "trim": {`x|trim(x)`},
	"startswith": {`x.startswith((x, x, x))`}, "endswith": {`x.endswith(x)`}, "removeprefix": {`x.removeprefix(x)`},
	"removesuffix": {`x.removesuffix(x)`},
	"find":         {`x.find('y')`, `up.find('y', 5)`}, "count": {`x.count('y')`, `x|count`, `l.count(-1)`},
	"rfind": {`x.rfind('y')`}, "index": {`x.index('x')`, `l.index(100000)`}, "rindex": {`x.rindex('x')`},
	"partition": {`bl.partition(' ')`}, "rpartition": {`bl.rpartition(' ')`}, "splitlines": {`nl.splitlines()`, `nl.splitlines(true)`},
	"casefold": {`x.casefold()`, `up.casefold()`}, "swapcase": {`x.swapcase()`}, "zfill": {`x.zfill(2000000000)`},
	"ljust": {`x.ljust(2000000000)`}, "rjust": {`x.rjust(2000000)`}, "center": {`x.center(2000000, 'ŉ')`},
	"isalnum": {`x.isalnum()`}, "isascii": {`x.isascii()`}, "isdecimal": {`('1' * 1000000).isdecimal()`}, "isnumeric": {`x.isnumeric()`},
	"islower": {`x.islower()`}, "isupper": {`('X' * 1000000).isupper()`}, "istitle": {`bl.istitle()`}, "isprintable": {`x.isprintable()`},
	"format": {`('{}' * 300000).format(*l)`, `('%c' * 3)|format(1)`, `'{}{}{}{}{}{}'.format(x, x, x, x, x, x)`,
		`('%9999d' * 100000) % l`, `'%s%s%s%s%s' % (x, x, x, x, x)`,
		`'%r' % ctl`, `'%r%r'|format(ctl, ctl)`, `('{0' + '.a' * 400000 + '}').format(d)`, `('%' + x)|format(1)`, `('{:' + x + '}').format(1)`},
	"keys": {`d.keys()|list`}, "values": {`d.values()|list`}, "items": {`d.items()|list`, `d|items|list`},
	"get": {`d.get(x)`}, "copy": {`d.copy()`, `l.copy()`},
	"fromkeys": {`dict.fromkeys(l)`, `dict.fromkeys(x)`}, "dict": {`dict(d)`, `dict(d, a=1)`}, "namespace": {`namespace(d).a`},
	"range": {`range(100000)`, `range(99999)|list`, `range(-9223372036854775807, 9223372036854775807)`},
	"d":     {`x|d(x)`}, "default": {`u|default(x)`},
	"dictsort": {`d|dictsort`}, "sort": {`l|sort`, `xs|sort`, `x|sort`, `ys|sort(attribute='a')`, `l|sort(attribute='a.' * 300000)`},
	"first": {`x|first`, `l|first`}, "last": {`x|last`, `l|last`},
	"float": {`x|float`}, "int": {`x|int`}, "length": {`x|length`, `l|length`},
	"indent": {`nl|indent`, `nl|indent(1000, true, true)`, `x|indent(2000000000)`, `nl|indent(x, true, true)`},
	"list":   {`x|list`, `l|list`}, "map": {`l|map('string')|list`, `l|map(attribute='a')|list`, `x|map('string')|list`},
	"reject": {`l|reject('none')|list`}, "rejectattr": {`l|rejectattr('a')|list`}, "select": {`l|select|list`, `x|select|list`},
	"selectattr": {`l|selectattr('a')|list`},
	"reverse":    {`x|reverse`, `up|reverse`, `l|reverse|list`}, "safe": {`l|safe`}, "string": {`l|string`, `ctl|list|string`},
	"tojson": {`ctl|tojson`, `l|tojson`, `l|tojson(indent=1000000)`, `[[[[l]]]]|tojson(indent=100000)`,
		`l|tojson(separators=(x, x))`, `d|tojson(sort_keys=true)`},
	"strftime_now": {`strftime_now('%c' * 500000)`}, "raise_exception": {`raise_exception(l)`},
	"+": {`x + x + x + x + x + x`, `l + l + l`, `(amp|safe) + amp`, `amp|safe + amp`}, "~": {`x ~ x ~ x ~ x`, `l ~ l`},
	"*": {`x * 1000`, `l * 1000`, `[x] * 100000000`, `(1,) * 1000000`}, "[]": {`x[::2]`, `up[::-1]`, `l[::2]`, `l[::-1]`,
		`x[1:]`}, "in": {`1 in x|list`, `x in d`},
	"==": {`xs == zs`, `x in zs`}, "loop": {`l|length`},
}

// TestLargeInputs: whatever a template makes of a large input, what it allocates stays near the limit: it is counted before it is made.
func TestLargeInputs(t *testing.T) {
	repeat := func(part string) Value { return String(strings.Repeat(part, 1<<20/len(part))) }
	values := make([]Value, 1<<17)
	d := NewDict(0)
	for i := range values {
		values[i] = Int(int64(i))
		if i < 1<<14 {
			d.set(Int(int64(i)), values[i])
		}
	}
	x := repeat("x")
	ys := make([]Value, 64)
	for i := range ys {
		ys[i] = NewDict(1).Set("a", repeat("Y")).Value()
	}
	vars := Vars{{"x", x}, {"nl", repeat("\n")}, {"bl", repeat("x ")}, {"ctl", repeat("\x01")}, {"amp", repeat("&")}, {"up", repeat("ŉ")},
		{"tags", repeat("</think>")}, {"l", NewList(values...)}, {"d", d.Value()}, {"ys", NewList(ys...)},
		{"xs", NewList(slices.Repeat([]Value{repeat("X")}, 1000)...)}, {"zs", NewList(slices.Repeat([]Value{repeat("X"), repeat("X")}, 500)...)}}
	limits := Limits{OutputBytes: 2 << 20}
	const most = 40 << 20 // five times MadeBytes: a text that grows is copied
	for name, sources := range large {
		for _, src := range sources {
			tmpl, err := Compile("{% set r = "+src+" %}", Options{Limits: limits})
			if err != nil {
				t.Errorf("%s: %s: got %v, want no error", name, src, err)
				continue
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = tmpl.Render(nil, vars)
			runtime.ReadMemStats(&after)
			if made := after.TotalAlloc - before.TotalAlloc; made > most {
				t.Errorf("%s: %s allocates %d MiB, want at most %d (%.100v)", name, src, made>>20, most>>20, err)
			}
			if err != nil && len(err.Error()) > 4<<10 && name != "raise_exception" { // its text is the template's
				t.Errorf("%s: %s: an error of %d bytes", name, src, len(err.Error()))
			}
		}
	}
	for kind, all := range map[string]map[string]*builtin{"filter": filters, "str": strMethods, "dict": dictMethods,
		"list": listMethods, "tuple": tupleMethods} {
		for name, b := range all {
			if absent := b.raw != nil && kind != "filter"; len(large[name]) == 0 && !b.mutates && !absent {
				t.Errorf("%s %s: no case makes much of a large input", kind, name)
			}
		}
	}
	for name := range globals {
		if len(large[name]) == 0 {
			t.Errorf("function %s: no case makes much of a large input; got %d, want some", name, len(large[name]))
		}
	}
}

// TestNamedArguments: what compares the names of arguments counts as steps.
func TestNamedArguments(t *testing.T) {
	var names strings.Builder
	d := NewDict(0)
	for i := range 5000 {
		fmt.Fprintf(&names, "p%d=1,", i)
	}
	for i := range 20000 {
		d.Set(fmt.Sprint("d", i), None)
	}
	define := "{% macro f(" + names.String() + "z=1) %}{% endmacro %}"
	for name, call := range map[string]string{"given twice": "f(" + names.String() + " **d)", "a macro's": "f(**d)"} {
		tmpl, err := Compile(define+"{{ "+call+" }}", Options{Limits: Limits{Steps: 1_000_000}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tmpl.Render(nil, Vars{{"d", d.Value()}}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %.100v, want the limit", name, err)
		}
	}
}

// TestStopsInside: a rendering whose time is over ends inside of one expression, not only between statements.
func TestStopsInside(t *testing.T) {
	done := make(chan struct{})
	close(done)
	big, other := String(strings.Repeat("Xy \n", 1<<20)), String(strings.Repeat("Éß&\x01", 1<<19))
	for _, src := range []string{"x.split(' ')", "x.split()", "x.rsplit(' ')", "x.replace('X', 'zz')", "x.upper()",
		"o.lower()", "o.upper()", "x|title", "x.capitalize()",
		"x.strip(x)", "x.strip('Xy \n')", "x|indent", "o|tojson", "o|list", "x[::-1]", "o[::-1]", "x ~ x", "x|safe ~ o",
		"(o|safe) + o", "'%r' % o", "strftime_now(x)", "[x] == [y]",
		"x|replace('X', 'q')", "range(99999)|list|string", "x.join(['a', 'b'])", "[x, y]|sort",
		"x.isalpha() or ('a' * 9000000).isalpha()", "{x: 1}[y]"} {
		tmpl, err := Compile("{% set r = "+src+" %}", Options{})
		if err != nil {
			t.Fatal(err)
		}
		chat := Chat{Messages: NewList(), Vars: Vars{{"x", big}, {"y", String(strings.Clone(big.str))}, {"o", other}}, Done: done}
		if _, err := tmpl.Apply(nil, &chat); !errors.Is(err, ErrStopped) && !errors.Is(err, ErrLimit) {
			t.Errorf("%s goes on after its time: %.100v", src, err)
		}
	}
}
