// Package mistral makes the prompts of vLLM's --tokenizer-mode mistral. There is no chat template: mistral-common normalizes the
// messages of a request and encodes them one by one, with control tokens inserted as ids, so that no client text ever becomes a
// control token. Besides the tokenizer's work it costs one copy of the texts.
//
//	Request ─ read ─▶ messages ─ normalize ─▶ messages ─ encode ─▶ ids, with one [IMG] for each image
//
// Each step depends on the version of the tokenizer file: 1, 2, 3, 7, 11, 13 or 15. The caller replaces each [IMG] with the rows of
// its image. A request that cannot be read is a RefusedError. mistral-common's validation (the order of messages, matching of
// calls and results, schemas of tools) is not repeated here: the engine answers such requests with 400.
//
// Sources of the rules: mistral-common 1.13.1 in its test mode, MistralCommonBackend of transformers 5.19, and vLLM 0.32.0 for its
// changes to a request before that (tokenizers/mistral.py, renderers/mistral.py).
package mistral

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// Tokenizer encodes chat requests with one Mistral tokenizer file. Immutable after Load, safe for concurrent use.
type Tokenizer struct {
	text    *tokenizer.Tokenizer
	version int
	images  bool // the file has an image encoder
	audio   bool
	id      controls
	effort  *effortRule // version 15; nil: the prompt does not contain it
}

// controls are the ids of the control tokens, by the version that introduced them.
type controls struct {
	bos, eos, inst, instEnd, tools, toolsEnd, results, resultsEnd, calls, img uint32 // version 2
	system, systemEnd, toolContent                                            uint32 // 7
	args, callID                                                              uint32 // 11
	think, thinkEnd                                                           uint32 // 13, if the file has them
	settings, settingsEnd                                                     uint32 // 15
	canThink                                                                  bool
}

// effortRule is the reasoning_effort setting of a version 15 file.
type effortRule struct{ Default string }

// tekkenHead holds the members of a tekken.json that concern chats.
type tekkenHead struct {
	Config     struct{ Version string }
	Image      map[string]any
	Multimodal map[string]any // the older name of Image
	Audio      map[string]any
	Settings   *struct {
		Effort *effortRule `json:"reasoning_effort"`
	} `json:"model_settings_builder"`
}

// Detect reports whether vLLM selects Mistral mode for a directory by itself: it has a Mistral tokenizer file of a known version,
// and weights in Mistral's own format or no file that another reader could use.
func Detect(dir fs.FS) bool {
	return Possible(dir) && (has(dir, "consolidated*.safetensors") ||
		has(dir, "params.json") && !has(dir, "config.json") && !has(dir, "tokenizer.json"))
}

// Possible reports whether a directory's tokenizer file allows Mistral mode.
func Possible(dir fs.FS) bool { return has(dir, tekkenFile) || has(dir, "tokenizer.model.v*") }

func has(dir fs.FS, pattern string) bool {
	names, err := fs.Glob(dir, pattern)
	return err == nil && len(names) > 0
}

// file returns the tokenizer file that mistral-common takes from a directory, "" if there is none: tekken.json, else the last
// SentencePiece file by name.
func file(dir fs.FS) (last string) {
	if has(dir, tekkenFile) {
		return tekkenFile
	}
	names, _ := fs.Glob(dir, "*.model*")
	for _, name := range names {
		if _, _, err := pieceVersion(name); err == nil {
			last = max(last, name)
		}
	}
	return last
}

const tekkenFile = "tekken.json"

// pieceVersion parses version and image encoder from a SentencePiece file's name: tokenizer.model is version 1, x.model.v7m1 is
// version 7 with images.
func pieceVersion(name string) (version int, images bool, err error) {
	if _, suffix, ok := strings.Cut(name, "."); ok {
		suffix, images = strings.CutSuffix(suffix, "m1")
		switch suffix {
		case "model", "model.v1":
			return 1, false, nil
		case "model.v2":
			return 2, false, nil
		case "model.v3":
			return 3, images, nil
		case "model.v7":
			return 7, images, nil
		case "model.v11":
			return 11, images, nil
		}
	}
	return 0, false, fmt.Errorf("want a name that ends in .model or .model.v1, v2, v3, v7 or v11")
}

// Load reads the tokenizer of a model directory. The error names the file and what is wrong with it. A tekken.json of 131 072
// tokens takes about half a second.
func Load(dir fs.FS) (*Tokenizer, error) {
	name := file(dir)
	if name == "" {
		return nil, errors.New("no Mistral tokenizer here: want tekken.json, or tokenizer.model with a version: tokenizer.model.v3")
	}
	data, err := fs.ReadFile(dir, name)
	if err != nil {
		return nil, err
	}
	t := new(Tokenizer)
	if name == tekkenFile {
		err = t.readTekken(data)
	} else {
		t.version, t.images, err = pieceVersion(name)
		if err == nil {
			t.text, err = tokenizer.LoadSentencePiece(data)
		}
	}
	if err == nil {
		err = t.findControls(name == tekkenFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

func (t *Tokenizer) readTekken(data []byte) error {
	var head tekkenHead
	if err := json.Unmarshal(data, &head); err != nil {
		return err
	}
	_, err := fmt.Sscanf(head.Config.Version, "v%d", &t.version)
	if err != nil || !slices.Contains([]int{1, 2, 3, 7, 11, 13, 15}, t.version) {
		return fmt.Errorf("config.version: want v1, v2, v3, v7, v11, v13 or v15, got %q", head.Config.Version)
	}
	t.images = len(head.Image) > 0 || len(head.Multimodal) > 0
	t.audio = len(head.Audio) > 0
	if t.version >= 15 {
		if head.Settings == nil {
			return fmt.Errorf("model_settings_builder: missing, and version 15 refuses every request without it")
		}
		t.effort = head.Settings.Effort
	}
	t.text, err = tokenizer.LoadTekken(data)
	return err
}

// findControls looks up the control tokens. One that is missing is the unknown token in a SentencePiece file, and an error in a
// Tekken file.
func (t *Tokenizer) findControls(tekken bool) error {
	c := &t.id
	for _, want := range []struct {
		from int
		text string
		id   *uint32
	}{
		{1, "<s>", &c.bos}, {1, "</s>", &c.eos}, {2, "[INST]", &c.inst}, {2, "[/INST]", &c.instEnd},
		{2, "[AVAILABLE_TOOLS]", &c.tools}, {2, "[/AVAILABLE_TOOLS]", &c.toolsEnd},
		{2, "[TOOL_RESULTS]", &c.results}, {2, "[/TOOL_RESULTS]", &c.resultsEnd}, {2, "[TOOL_CALLS]", &c.calls},
		{7, "[SYSTEM_PROMPT]", &c.system}, {7, "[/SYSTEM_PROMPT]", &c.systemEnd}, {7, "[TOOL_CONTENT]", &c.toolContent},
		{11, "[ARGS]", &c.args}, {11, "[CALL_ID]", &c.callID},
		{15, "[MODEL_SETTINGS]", &c.settings}, {15, "[/MODEL_SETTINGS]", &c.settingsEnd},
	} {
		if t.version < want.from {
			continue
		}
		id, ok := t.control(want.text)
		if !ok {
			id, ok = t.text.ID("<unk>")
			if tekken || !ok {
				return fmt.Errorf("no token %s, which version %d needs", want.text, t.version)
			}
		}
		*want.id = id
	}
	if t.images {
		var ok bool
		c.img, ok = t.control("[IMG]")
		if !ok {
			return fmt.Errorf("no token [IMG], but an image encoder")
		}
	}
	if t.version >= 13 {
		var begin, end bool
		c.think, begin = t.control("[THINK]")
		c.thinkEnd, end = t.control("[/THINK]")
		c.canThink = begin && end
	}
	return nil
}

func (t *Tokenizer) control(text string) (uint32, bool) {
	id, ok := t.text.ID(text)
	return id, ok && t.text.IsSpecial(id)
}

// Text returns the underlying tokenizer, for prompts that are plain text.
func (t *Tokenizer) Text() *tokenizer.Tokenizer { return t.text }

// RefusedError means that vLLM answers the request with an error of this status.
type RefusedError struct {
	Status int
	Reason string
}

func (e *RefusedError) Error() string { return "refused: " + e.Reason }

func refuse(reason string) error { return &RefusedError{400, reason} }
