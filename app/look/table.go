package look

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/sightline-router/sightline/internal/printable"
)

// page is what is shown at once.
type page struct {
	bytes.Buffer
	width, height int // of the terminal; 0: there is none
	wide, color   bool
	least         map[string]int // widths of a table's columns in the page before, which it keeps
}

func (v *View) page() *page {
	p := &page{wide: v.Output == "wide", color: v.Color}
	if v.isTerminal() {
		p.width, p.height, _ = term.GetSize(int(v.Out.Fd())) // 0 if it has none
	}
	return p
}

// column is one of a table. Where a terminal is too narrow, names in the middle of which something is left out give way, then columns:
// those with the highest rank first.
type column struct {
	title string
	right bool // figures
	rank  int  // 0: always there; wideOnly: only with -o wide
}

const fewRanks, wideOnly = 9, 10

// fewest is to how many characters a name is cut, before columns give way.
const fewest = 14

func (p *page) paint(c text.Colors, s string) string {
	if !p.color {
		return s
	}
	return c.Sprint(s)
}

func (p *page) bold(s string) string { return p.paint(text.Colors{text.Bold}, s) }
func (p *page) dim(s string) string  { return p.paint(text.Colors{text.Faint}, s) }
func (p *page) good(s string) string { return p.paint(text.Colors{text.FgGreen}, s) }
func (p *page) warn(s string) string { return p.paint(text.Colors{text.FgYellow}, s) }
func (p *page) bad(s string) string  { return p.paint(text.Colors{text.FgRed, text.Bold}, s) }

// line prints words with a blank between them. They must be printable; said makes them so.
func (p *page) line(words ...string) { fmt.Fprintln(p, strings.Join(words, " ")) }

// said is a text from outside.
func said(s string) string { return printable.Text(s) }

// under prints a text behind a word, in as many lines as it needs, all behind it.
func (p *page) under(word, s string, paint func(string) string) {
	const indent = 11
	width := 100
	if p.width > 0 {
		width = max(40, min(p.width, 120))
	}
	for i, line := range strings.Split(text.WrapSoft(s, width-indent), "\n") {
		if i > 0 {
			word = ""
		}
		p.line(fmt.Sprintf("%-*s", indent-1, word), paint(strings.TrimSpace(line)))
	}
}

func plain(s string) string { return s }

// table prints rows, each with a cell for each column, and the columns' titles before them if they are wanted.
func (p *page) table(header bool, columns []column, rows [][]string) {
	titles, widths := make([]string, len(columns)), make([]int, len(columns))
	most := fewRanks
	if p.wide {
		most = wideOnly
	}
	for ; ; most-- { // until what is shown fits
		over := -2 - p.width
		for i, c := range columns {
			titles[i], widths[i] = c.title, max(width(c.title), p.least[c.title])
			for _, row := range rows {
				widths[i] = max(widths[i], width(row[i]))
			}
			if c.rank <= most {
				over += widths[i] + 2
			}
		}
		if p.wide || p.width == 0 {
			break
		}
		for i, c := range columns {
			if c.rank <= most && !c.right && over > 0 && widths[i] > fewest {
				cut := min(over, widths[i]-fewest)
				widths[i], over = widths[i]-cut, over-cut
			}
		}
		if most == 0 || over <= 0 {
			break
		}
	}
	var configs []table.ColumnConfig
	for i, c := range columns {
		if p.least != nil {
			p.least[c.title] = widths[i]
		}
		if c.rank <= most {
			align := map[bool]text.Align{true: text.AlignRight, false: text.AlignLeft}[c.right]
			configs = append(configs, table.ColumnConfig{Number: len(configs) + 1, Align: align, AlignHeader: align, WidthMin: widths[i]})
		}
	}
	line := func(cells []string, paint func(string) string) (out table.Row) {
		for i, cell := range cells {
			if columns[i].rank <= most {
				out = append(out, paint(middle(cell, widths[i])))
			}
		}
		return out
	}
	t, style := table.NewWriter(), table.StyleLight
	style.Options, style.Box.PaddingLeft, style.Box.PaddingRight = table.OptionsNoBordersAndSeparators, "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.SetColumnConfigs(configs)
	if header {
		t.AppendHeader(line(titles, p.dim))
	}
	for _, row := range rows {
		t.AppendRow(line(row, plain))
	}
	p.line(t.Render())
}

func width(s string) int { return text.StringWidthWithoutEscSequences(s) }

// middle leaves out a text's middle where it is too long: names differ at their ends. A coloured cell is never cut.
func middle(s string, most int) string {
	r := []rune(s)
	if most < 3 || strings.Contains(s, "\x1b") || width(s) <= most {
		return s
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

// before puts a text before the page.
func (p *page) before(s string) {
	rest := p.String()
	p.Reset()
	p.WriteString(s + rest)
}

// fit makes the page a whole screen: what was there goes, and what does not fit is left out.
func (p *page) fit() {
	lines := strings.Split(strings.TrimRight(p.String(), "\n"), "\n")
	if p.height > 2 && len(lines) > p.height-1 {
		more := len(lines) - (p.height - 2)
		lines = append(lines[:p.height-2], p.dim(fmt.Sprintf("… %d more lines", more)))
	}
	p.Reset()
	p.WriteString("\x1b[H")
	for _, line := range lines {
		p.WriteString(line + "\x1b[K\n")
	}
	p.WriteString("\x1b[J")
}
