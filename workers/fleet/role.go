package fleet

import "fmt"

// Role is the part of a request that a worker does. A request is prefilled and decoded at one worker that does both; or it is
// prefilled at a worker with the role prefill and decoded at another, which fetches the KV blocks (router/choose/pairs.go chooses the
// two). Its images may be encoded at a third (router/choose/encoders.go).
//
//	prefill  prefills for others and never serves a request alone
//	decode   decodes what others have prefilled, and does all of a request if that is cheaper or no other can prefill
//	encode   encodes images for the workers that prefill
type Role uint8

// Any is the role of a worker without one: it does all of a request, and decodes for others too.
const (
	Any Role = iota
	Prefill
	Decode
	Encode
)

var roleNames = [...]string{"", "prefill", "decode", "encode"}

func (r Role) String() string { return roleNames[r] }

// RoleOf parses a configured role: "" and "both" are Any.
func RoleOf(text string) (Role, error) {
	if text == "both" {
		return Any, nil
	}
	for i, name := range roleNames {
		if text == name {
			return Role(i), nil
		}
	}
	return Any, fmt.Errorf("%q is not a role (want prefill, decode, encode or both)", text)
}

// splitByRole splits a model's workers into the slots to choose among and those that encode. With prefill workers only, nothing can be
// served.
func splitByRole(workers []*Worker) (choose, encode []*Slot) {
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

// Encoders returns the slots that encode images for a model. The caller must not change the list.
func (f *Fleet) Encoders(model string) []*Slot { return f.state.Load().encode[model] }

// ServesAlone reports whether a worker can serve a request by itself although others prefill. A prefill worker cannot, nor can a worker
// behind front ends, since those want both workers named (NVIDIA Dynamo).
func (w *Worker) ServesAlone() bool { return w.Role != Prefill && w.Instance == "" }
