package account

import (
	"fmt"
	"strings"
)

// Change is where a prompt departs from an earlier one that goes on like it. It has no client's text.
type Change struct {
	Part  string `json:"part"`           // such as "the system text" or "message 3 (user)"
	Token int    `json:"token"`          // the prompt's first token that differs; -1: not known
	Kind  string `json:"kind,omitempty"` // what differs there, such as "a date"; "": not known
}

// String returns the change for people.
func (c *Change) String() string {
	text := c.Part + " differs"
	if c.Token >= 0 {
		text += fmt.Sprintf(" at token %d", c.Token)
	}
	if c.Kind != "" {
		text += ": " + c.Kind
	}
	return text
}

// General returns where such changes are, for the sum of many: without the number of a message, and without its token.
func (c *Change) General() Change {
	at := *c
	if role, message := strings.CutPrefix(c.Part, "message "); message {
		_, role, _ = strings.Cut(role, " (")
		at.Part, at.Token = "a message of "+strings.TrimSuffix(role, ")"), -1
	} else if strings.HasPrefix(c.Part, "image ") {
		at.Part, at.Token = "an image", -1
	}
	return at
}

// Advice returns what would avoid the change; "": nothing is known.
func (c *Change) Advice() string {
	switch c.Kind {
	case "a date", "a time of day", "a number", "a uuid", "an id":
		return "move it to the end"
	case "order":
		return "keep one order"
	case "reasoning dropped", "reasoning added":
		return "send answers back as they came"
	case "earlier messages cut":
		return "cut seldom, and much at once"
	case "earlier messages replaced by fewer", "earlier messages put in", "edited":
		return "append instead"
	case "its URL signed anew":
		return "keep one URL for an image, or send its bytes"
	case "another image under its URL":
		return "give each image a URL of its own"
	case "other bytes of the same size":
		return "send an image's bytes as they came first"
	case "another size of the same shape":
		return "resize an image once, not each turn"
	}
	return ""
}
