// Package printable makes texts from outside fit for a terminal, which would obey control characters, and could be made to show one text
// in another's direction. It also writes numbers and durations for people.
package printable

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns a text in one line: U+FFFD stands for each character that is not printable.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, text)
}

// JSON returns a JSON text in which characters that are not printable are escaped. White space between its values stays.
func JSON(text []byte) string {
	var out strings.Builder
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r':
			out.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// Writer passes on what is printable, line ends and tabs, and U+FFFD for each other character. Each Write has whole characters.
func Writer(to io.Writer) io.Writer { return writer{to} }

type writer struct{ to io.Writer }

func (w writer) Write(text []byte) (int, error) {
	_, err := w.to.Write(bytes.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return utf8.RuneError
	}, text))
	return len(text), err
}
