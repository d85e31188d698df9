package dynamo

import "testing"

// Every worker-rank that discovery tells of is heard, however many they are; of those that nobody has asked for, so many are kept
// until discovery knows them, and more are refused, counted and told of once.
func TestManyRanks(t *testing.T) {
	told := 0
	p := &Plane{Full: func() { told++ }}
	for id := range uint64(2 * maxStrangers) {
		p.Source(Key{Worker: id})
	}
	for id := range uint64(2 * maxStrangers) {
		if p.deliver(Key{Worker: id}, 1, 0, nil) == nil {
			t.Fatalf("worker %d is not heard", id)
		}
	}
	for id := range uint64(maxStrangers + 3) {
		if heard := p.deliver(Key{Worker: id, Rank: 1}, 1, 0, nil) != nil; heard != (id < maxStrangers) {
			t.Fatalf("of unknown ranks, number %d is kept: %v", id, heard)
		}
	}
	if told != 1 || p.Refused() != 3 {
		t.Errorf("told %d times, %d refused", told, p.Refused())
	}
	p.Source(Key{Worker: 0, Rank: 1}) // discovery has come to know one
	if p.deliver(Key{Worker: 1 << 40}, 1, 0, nil) == nil {
		t.Error("there is room for one, and it is refused")
	}
}
