package mistral

import (
	"strings"
)

// validate checks the order of the messages and what they hold (MistralRequestValidator and its versions). Which parts a
// message may have was checked when it was read.
func (t *Tokenizer) validate(list []message) error {
	last := &list[len(list)-1]
	switch {
	case len(list) == 1 && last.role != "user" && last.role != "system":
		return refuse("one message that is neither the user's nor the system's")
	case len(list) > 1 && last.role == "assistant" && !last.prefix:
		return refuse("last message is the assistant's")
	}
	for i := 1; i < len(list); i++ {
		if !follows(list[i-1].role, list[i].role) {
			return refuse("message of a role that cannot follow the one before")
		}
	}
	paired := pairedByCount
	if t.version >= 11 {
		paired = pairedByID
	}
	if err := paired(list); err != nil {
		return err
	}
	for i := range list {
		if err := t.validateMessage(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

func follows(before, role string) bool {
	if before == "system" || before == "user" {
		return role != "tool"
	}
	return role != "system" // behind assistant and tool
}

// pairedByCount: before the assistant speaks again, each of its calls has an answer. The first message does not count.
func pairedByCount(list []message) error {
	open := 0
	for i := 1; i < len(list); i++ {
		switch m := &list[i]; m.role {
		case "tool":
			open--
		case "assistant":
			if open != 0 {
				return refuse("tool calls and tool results differ in number")
			}
			open = len(m.calls)
		}
	}
	return nil
}

// pairedByID: from version 11 on the ids of calls and answers must agree.
func pairedByID(list []message) error {
	const expected, seen = 1, 2
	ids := map[string]int{}
	open := 0
	for i := 1; i < len(list); i++ {
		switch m := &list[i]; m.role {
		case "tool":
			if ids[m.callID] != expected {
				return refuse("tool result of an unknown call, or a second one")
			}
			ids[m.callID] = seen
			open--
		case "assistant":
			if open != 0 {
				return refuse("tool calls and tool results differ in number")
			}
			clear(ids)
			for _, c := range m.calls {
				if ids[c.id] != 0 {
					return refuse("two tool calls with one id")
				}
				ids[c.id] = expected
			}
			open = len(m.calls)
		}
	}
	return nil
}

func (t *Tokenizer) validateMessage(m *message) error {
	switch m.role {
	case "assistant":
		if t.version < 7 && m.empty() != (len(m.calls) > 0) {
			return refuse("message of the assistant with content and tool calls, or with none of them")
		}
		for _, c := range m.calls {
			if !goodName(c.name) || !t.goodCallID(c.id) {
				return refuse("tool call with a name or id that is not allowed")
			}
		}
	case "tool":
		if m.name != nil && !goodName(*m.name) || !t.goodCallID(m.callID) {
			return refuse("tool result with a name or id that is not allowed")
		}
	}
	return nil
}

// empty is Python's truth of a content.
func (m *message) empty() bool { return m.text == "" && len(m.chunks) == 0 }

// goodCallID: nine letters and digits for versions 3 to 11, anything for 13 and later; "null" means none.
func (t *Tokenizer) goodCallID(id string) bool {
	switch {
	case t.version < 3:
		return true
	case t.version >= 13:
		return id != "" && id != "null"
	}
	id = strings.TrimSuffix(id, "\n") // as $ does in Python
	return len(id) == 9 && wordy(id, "")
}

// goodName tells whether a function may be called so.
func goodName(name string) bool {
	name = strings.TrimSuffix(name, "\n")
	return name != "" && len(name) <= 64 && wordy(name, "_-")
}

// wordy tells whether a text has only ASCII letters, digits and the characters of more.
func wordy(text, more string) bool {
	for i := range len(text) {
		c := text[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}
