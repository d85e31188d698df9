package vision

import "fmt"

// UnknownModelError means that a directory holds a multimodal model that the table does not have. Its prompts cannot be predicted
// past the first medium.
type UnknownModelError struct {
	ModelType    string // config.json model_type, may be ""
	Architecture string // first of config.json architectures, may be ""
}

func (e *UnknownModelError) Error() string {
	return fmt.Sprintf("multimodal model of unknown type: model_type %q, architecture %q (docs/families.md lists the "+
		"known ones; where it is a fine-tune of one, vision_family names that)",
		e.ModelType, e.Architecture)
}

// MissingError means that the directory lacks something that the family's rule needs. The model must not be treated as exact.
type MissingError struct {
	Family string
	What   string // what is missing, and where it was expected
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: %s", e.Family, e.What)
}

// RefusedError means that the engine answers the request with an error and stores nothing for it.
type RefusedError struct {
	Status int    // the HTTP status of vLLM
	Reason string // why the engine refuses, in our words
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the engine refuses this (%d): %s", e.Status, e.Reason)
}

// UndecidableError means that the tokens cannot be derived from the request. Everything before Modality's first placeholder is
// still exact.
type UndecidableError struct {
	Modality string
	Reason   string
	TooMany  bool // there are too many tokens to write them, see Expander.With
}

func (e *UndecidableError) Error() string {
	return fmt.Sprintf("%s tokens cannot be predicted: %s", e.Modality, e.Reason)
}

func refused(status int, format string, a ...any) error {
	return &RefusedError{Status: status, Reason: fmt.Sprintf(format, a...)}
}

// notCounted is the reason of media that no rule counts: the engine samples a video's frames, resamples sound, or shares a budget.
const notCounted = "no rule for the tokens that it becomes"

func undecidable(modality, format string, a ...any) error {
	return &UndecidableError{Modality: modality, Reason: fmt.Sprintf(format, a...)}
}
