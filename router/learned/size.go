package learned

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Sizes estimates how many tokens a request becomes that no rule can read, from what the engines counted for earlier ones. An estimate
// serves the cost of a choice, and is no hit.
type Sizes struct {
	mu      sync.Mutex
	byClass map[uint32]*Size
	media   *simplelru.LRU[sized, float64] // tokens of media whose pixels are not known, such as those of URLs; nil: none
}

// sized is a medium, by Medium.ID, at the engines of a class.
type sized struct {
	class  uint32
	medium uint64
}

const maxSized = 1 << 15 // 3 MiB

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

// Fill sets the size of a path's media that do not tell it to pixels that are as many tokens as they were in an earlier prompt.
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
		if at := &p.Steps[md.Step]; at.Bytes == 0 {
			if tokens, known := s.media.Get(sized{class, md.ID}); known {
				at.Bytes = int32(min(max(1, 1e6*(tokens-of.PerImage)/max(1, of.PerPixel)), 1<<30))
			}
		}
	}
}

// keep remembers that a path's media that do not tell their size were some tokens each.
func (s *Sizes) keep(class uint32, p *Path, each float64) {
	for _, md := range p.Media {
		if p.Steps[md.Step].Bytes > 0 {
			continue
		}
		if s.media == nil {
			s.media, _ = simplelru.NewLRU[sized, float64](maxSized, nil) // fails only for a size below 1
		}
		s.media.Add(sized{class, md.ID}, each)
	}
}

// Learn takes over how many tokens a prompt had.
func (s *Sizes) Learn(class uint32, p *Path, tokens int) {
	text, others, images, pixels := 0., 0., 0., 0.
	for i := range p.Steps {
		switch bytes := float64(p.Steps[i].Bytes); {
		case !p.Steps[i].Media:
			text += bytes
		case bytes == 0:
			others++
		default:
			images, pixels = images+1, pixels+bytes/1e6
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.byClass[class]
	if of == nil {
		if len(s.byClass) == maxClasses {
			return
		}
		of = new(Size)
		*of = usual
		if s.byClass == nil {
			s.byClass = make(map[uint32]*Size)
		}
		s.byClass[class] = of
	}
	expected := of.Tokens(p.Steps)
	wrong := min(float64(tokens), 2*expected+mostSurprise) - expected
	if others > 0 {
		s.keep(class, p, max(1, of.PerMedium+wrong/others))
	}
	switch {
	case images > 0: // a step towards the nearest numbers that would have been right
		share := wrong / (images*images + pixels*pixels + others*others)
		of.PerImage += newShare * share * images
		of.PerPixel += newShare * share * pixels
		of.PerMedium = max(1, of.PerMedium+newShare*share*others)
	case others > 0:
		of.PerMedium = max(1, of.PerMedium+newShare*wrong/others)
	case text > 0:
		of.PerByte += newShare * wrong / text
	}
}
