package learned

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Sizes estimates how many tokens a request becomes that no rule can read, from what the engines counted for earlier ones. An estimate
// serves the cost of a choice, and is no hit.
type Sizes struct {
	mu      sync.Mutex
	byClass map[uint32]*Size
	media   *simplelru.LRU[sized, mediumSize] // of media whose requests do not tell it; nil: none
}

// sized is a medium, by MediaStep.ID, at the engines of a class.
type sized struct {
	class  uint32
	medium uint64
}

// mediumSize is an estimate of a medium's tokens.
type mediumSize struct{ tokens, variance float64 }

const maxSized = 1 << 15 // 4 MiB

// Size is how many tokens the engines of a class make of what is in a request.
type Size struct {
	PerByte   float64 // of text
	PerMedium float64 // of a medium, if its pixels are not known
	PerImage  float64 // of an image, if they are, and
	PerPixel  float64 // for each million of them
}

const (
	usualPerByte   = 0.25
	usualPerMedium = 1000            // about 1280×720 pixels for most families
	usualPerPixel  = 1e6 / (28 * 28) // of a million
	newShare       = 0.1             // of the newest request in an estimate
	errorOfTold    = 0.1             // standard error of what is expected of texts and of images that tell their pixels, as a share
	errorOfMedium  = 0.5             // the same of another medium that was not seen before
	maxClasses     = 1 << 10
	// mostSurprise is by how many tokens more than twice the expected ones a prompt may raise an estimate: a worker that counts
	// nonsense changes little for the others of its class.
	mostSurprise = 1 << 10
)

var usual = Size{PerByte: usualPerByte, PerMedium: usualPerMedium, PerPixel: usualPerPixel}

// Tokens returns how many tokens some steps probably are.
func (s Size) Tokens(steps []Step) (n float64) {
	for i := range steps {
		switch bytes := float64(steps[i].Bytes); {
		case !steps[i].Media:
			n += s.PerByte * bytes
		case bytes == 0:
			n += s.PerMedium
		default:
			n += max(1, s.PerImage+s.PerPixel*bytes/1e6)
		}
	}
	return n
}

// Of returns what was learned of a class.
func (s *Sizes) Of(class uint32) Size {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byClass[class]; known != nil {
		return *known
	}
	return usual
}

// weigh returns about how many tokens some steps of a class's path are.
func (s *Sizes) weigh(class uint32, steps []Step) int32 {
	return int32(min(math.Ceil(s.Of(class).Tokens(steps)), 1<<30))
}

// Fill sets the sizes that a path's request does not tell to pixels that become as many tokens as they were in earlier prompts.
func (s *Sizes) Fill(class uint32, p *Path) {
	if len(p.Media) == 0 {
		return
	}
	of := s.Of(class)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.media == nil {
		return
	}
	for _, md := range p.Media {
		if at := &p.Steps[md.Step]; at.Untold {
			if known, ok := s.media.Get(sized{class, md.ID}); ok {
				at.Bytes = int32(min(max(1, 1e6*(known.tokens-of.PerImage)/max(1, of.PerPixel)), 1<<30))
			}
		}
	}
}

// Learn takes over how many tokens a prompt had. What is least certain of the estimate changes most.
func (s *Sizes) Learn(class uint32, p *Path, tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.learned(class)
	if of == nil {
		return
	}
	text, images, pixels, told, untold := 0., 0., 0., 0., 0
	for i := range p.Steps {
		bytes := float64(p.Steps[i].Bytes)
		switch {
		case p.Steps[i].Untold:
			untold++
			continue
		case p.Steps[i].Media:
			images, pixels = images+1, pixels+bytes/1e6
		default:
			text += bytes
		}
		told += of.Tokens(p.Steps[i : i+1])
	}
	media, unknown := s.untold(class, p, of)
	if len(media) < untold {
		return // another replica's request: it does not say which media they are
	}
	expected, variance := told, 1+square(errorOfTold*told)
	for i := range media {
		expected, variance = expected+media[i].tokens, variance+media[i].variance
	}
	wrong := min(float64(tokens), 2*expected+mostSurprise) - expected
	for i := range media {
		md := &media[i]
		share := md.variance / variance
		s.media.Add(md.sized, mediumSize{max(1, md.tokens+share*wrong), (1 - share) * md.variance})
	}
	switch {
	case unknown > 0:
		of.PerMedium = max(1, of.PerMedium+newShare*wrong/float64(unknown))
	case images > 0: // a step towards the nearest numbers that would have been right
		step := newShare * wrong / (images*images + pixels*pixels)
		of.PerImage, of.PerPixel = of.PerImage+step*images, of.PerPixel+step*pixels
	case text > 0 && untold == 0:
		of.PerByte += newShare * wrong / text
	}
}

// learned returns what is learned of a class; nil: of too many.
func (s *Sizes) learned(class uint32) *Size {
	of := s.byClass[class]
	if of != nil || len(s.byClass) == maxClasses {
		return of
	}
	if s.byClass == nil {
		s.byClass = make(map[uint32]*Size)
		s.media, _ = simplelru.NewLRU[sized, mediumSize](maxSized, nil) // fails only for a size below 1
	}
	of = new(Size)
	*of = usual
	s.byClass[class] = of
	return of
}

// untoldMedium is a medium whose request does not tell its size.
type untoldMedium struct {
	sized
	mediumSize
}

// untold returns the media of a path whose sizes its request does not tell, and how many of them were not seen before.
func (s *Sizes) untold(class uint32, p *Path, of *Size) (list []untoldMedium, unknown int) {
	for _, md := range p.Media {
		if !p.Steps[md.Step].Untold {
			continue
		}
		id := sized{class, md.ID}
		size, known := s.media.Get(id)
		if !known {
			size = mediumSize{of.PerMedium, square(errorOfMedium * of.PerMedium)}
			unknown++
		}
		list = append(list, untoldMedium{id, size})
	}
	return list, unknown
}

func square(x float64) float64 { return x * x }
