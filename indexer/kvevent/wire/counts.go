package wire

import "github.com/sightline-router/sightline/indexer/kvevent"

// Counts are what every decoder counts since it was made.
type Counts struct {
	Events      uint64 // events of a known type
	Blocks      uint64 // blocks stored, hashed
	Unknown     uint64 // events of a type that is not known; passed over
	Bad         uint64 // events that could not be read; passed over, the rest of the batch is used
	UnnamedLoRA uint64 // stored events with an adapter's number but not its name
}

// Event counts one event.
func (c *Counts) Event(known bool, err error) {
	switch {
	case err != nil:
		c.Bad++
	case known:
		c.Events++
	default:
		c.Unknown++
	}
}

// Since tells a batch what was passed over in it; before are the counts at its beginning.
func (c *Counts) Since(before Counts, b *kvevent.Batch) {
	b.Unknown, b.Bad = c.Unknown-before.Unknown, c.Bad-before.Bad
}
