package learned

import "sync"

// Sizes estimates how many tokens a request becomes that no rule can read, from what the engines counted for earlier ones. An estimate
// serves the cost of a choice, and is no hit.
type Sizes struct {
	mu      sync.Mutex
	byClass map[uint32]*sizes
}

type sizes struct {
	perByte   float64 // tokens of a byte of text
	perMedium float64 // tokens of a medium
}

const (
	usualPerByte   = 0.25
	usualPerMedium = 1000 // about 1280×720 pixels for most families
	newShare       = 0.1  // of the newest request in an estimate
	maxClasses     = 1 << 10
)

// content returns a path's bytes of text and its media.
func (p *Path) content() (text, media int) {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Media {
			media++
		} else {
			text += int(s.Bytes)
		}
	}
	return text, media
}

// Estimate returns how many tokens the engines of a class probably make of a path.
func (s *Sizes) Estimate(class uint32, p *Path) int {
	text, media := p.content()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := sizes{usualPerByte, usualPerMedium}
	if known := s.byClass[class]; known != nil {
		of = *known
	}
	return int(of.perByte*float64(text) + of.perMedium*float64(media))
}

// Learn takes over how many tokens a prompt had.
func (s *Sizes) Learn(class uint32, p *Path, tokens int) {
	text, media := p.content()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.byClass[class]
	if of == nil {
		if len(s.byClass) == maxClasses {
			return
		}
		of = (&sizes{usualPerByte, usualPerMedium})
		if s.byClass == nil {
			s.byClass = make(map[uint32]*sizes)
		}
		s.byClass[class] = of
	}
	if media == 0 && text > 0 {
		of.perByte += newShare * (float64(tokens)/float64(text) - of.perByte)
	} else if media > 0 {
		each := (float64(tokens) - of.perByte*float64(text)) / float64(media)
		of.perMedium += newShare * (max(each, 1) - of.perMedium)
	}
}
