package extproc

import (
	"testing"

	"github.com/tidwall/gjson"
)

// TestModels checks that with several models the list is answered here, and that the request passes if there are none, or if it
// is not a GET of the list.
func TestModels(t *testing.T) {
	get := []string{":method", "GET", ":path", "/v1/models?x=1"}
	r := newRig(t, always(pick), Options{Models: []string{"a", "b", "a-lora"}})
	got := r.talk(t, headersMsg(nil, true, get...))
	if len(got) != 1 || got[0].GetImmediateResponse().GetStatus().GetCode() != 200 {
		t.Fatalf("got %v, want one answer with status 200", got)
	}
	body := got[0].GetImmediateResponse().GetBody()
	if ids := gjson.GetBytes(body, "data.#.id").Raw; ids != `["a","b","a-lora"]` || gjson.GetBytes(body, "object").Str != "list" {
		t.Errorf("got %s, want a list of a, b and a-lora", body)
	}
	for _, other := range [][]string{{":method", "POST", ":path", "/v1/models"}, {":method", "GET", ":path", "/v1/models/a"}} {
		if got := r.talk(t, headersMsg(nil, true, other...)); len(got) != 1 || got[0].GetImmediateResponse() != nil {
			t.Errorf("%v: got %v, want it let through", other, got)
		}
	}
	if got := newRig(t, always(pick), Options{}).talk(t, headersMsg(nil, true, get...)); len(got) != 1 ||
		got[0].GetImmediateResponse() != nil {
		t.Errorf("without names: got %v, want it let through", got)
	}
}
