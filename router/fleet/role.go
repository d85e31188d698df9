package fleet

import "fmt"

// Role is what of a request a worker does. A request is prefilled and decoded at one worker that does both; or it is prefilled
// at one with the role prefill and decoded at another, which fetches the KV blocks (router/pair.go chooses the two). Its pictures
// may be encoded at a third (router/encode.go).
//
//	prefill  it prefills for others and is never asked by itself
//	decode   it decodes what others have prefilled, and does all of a request where that is cheaper or nobody else can
//	encode   it encodes pictures for those that prefill
type Role uint8

// Any is a worker's role that has none: it does all of a request, and decodes for others too.
const (
	Any Role = iota
	Prefill
	Decode
	Encode
)

var roles = [...]string{"", "prefill", "decode", "encode"}

func (r Role) String() string { return roles[r] }

// RoleOf reads a role as it is configured: "" and "both" are Any.
func RoleOf(text string) (Role, error) {
	if text == "both" {
		return Any, nil
	}
	for i, name := range roles {
		if text == name {
			return Role(i), nil
		}
	}
	return Any, fmt.Errorf("%q is no role (want prefill, decode, encode or both)", text)
}

// divide gives a model's workers their parts: the slots to choose among, and those that encode. With prefill workers alone
// nothing can be served.
func divide(workers []*Worker) (choose, encode []*Slot) {
	decodes := false
	for _, w := range workers {
		if w.Role == Encode {
			encode = append(encode, w.Slots...)
			continue
		}
		decodes = decodes || w.Role != Prefill
		choose = append(choose, w.Slots...)
	}
	if !decodes {
		return nil, encode
	}
	return choose, encode
}

// Encoders lists the slots of a model that encode pictures for the others. The caller must not change the list.
func (f *Fleet) Encoders(model string) []*Slot { return f.state.Load().encode[model] }

// Alone tells whether a worker can serve a request by itself: one that only prefills cannot, nor, where others prefill for it, one
// behind front ends, which want both named (NVIDIA Dynamo).
func (w *Worker) Alone(prefilled bool) bool {
	return w.Role != Prefill && (w.Instance == "" || !prefilled)
}
