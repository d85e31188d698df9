package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// Before a request is sent, explain and the routing call say where it goes and why; Envoy then sends it there; and afterwards
// explain says what became of it. A routing call that books is a request like Envoy's, until its end is told.
func TestExplainRunning(t *testing.T) {
	t.Parallel()
	const token = "a-token-of-this-test"
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 2
		o.Config = func(keys map[string]any) { keys["admin_token"] = token }
	})
	body := map[string]any{"model": lab.ModelName, "max_tokens": 2, "messages": []any{map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "text", "text": strings.Repeat("A long story about a picture. ", 60)},
		map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(7))}}}}}}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	explain := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(l.Self(), append([]string{"explain", "--admin", "http://" + l.Admin}, args...)...)
		cmd.Env = append(os.Environ(), "SIGHTLINE_ADMIN_TOKEN="+token)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("explain %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	call := func(path, body string) (int, gjson.Result) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, "http://"+l.Admin+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, gjson.ParseBytes(text)
	}
	first := post(t, l, body, nil)
	held := fmt.Sprintf("worker-%d", first.worker+1)
	awaitExact(t, l, first.worker, first.prompt/16*16)
	quiet(t, l)
	n := len(gjson.Parse(string(must(lab.Get("http://" + l.Admin + "/decisions?n=99")))).Array())

	said := gjson.Parse(explain(string(raw), "-o", "json"))
	best, other := said.Get("ranked.0"), said.Get("ranked.1")
	if said.Get("worker").Str != held || said.Get("reason").Str != "exact" || best.Get("worker").Str != held ||
		best.Get("exact").Int() < 800 ||
		other.Get("exact").Int() != 0 || other.Get("encode").Int() == 0 || said.Get("margin").Num < 800 || best.Get("cost").Num <= 0 {
		t.Errorf("explained: %s", said.Raw)
	}
	table := explain(string(raw))
	for _, want := range []string{"goes to     " + held, "reason      exact", "2 candidates, in tokens", "prefill",
		"worker-1", "worker-2", "margin "} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	code, routed := call("/v1/route", string(raw))
	if code != 200 || routed.Get("worker").Str != held || routed.Get("address").Str == "" ||
		routed.Get("second.worker").Str == held || routed.Get("booked").Bool() {
		t.Errorf("routed: %d %s", code, routed.Raw)
	}
	if now := len(gjson.Parse(string(must(lab.Get("http://" + l.Admin + "/decisions?n=99")))).Array()); now != n {
		t.Errorf("%d decisions came of asking: got %d, want %d", now-n, now, n)
	}

	second := post(t, l, body, nil)
	if fmt.Sprintf("worker-%d", second.worker+1) != held || int64(second.cached) != said.Get("cached_tokens").Int() {
		t.Errorf("explained %s, and worker %d found %d cached", said.Raw, second.worker, second.cached)
	}
	quiet(t, l)
	id := lastDecision(t, l).Get("id").Str
	for _, want := range []string{"goes to     " + held, "went to     " + routed.Get("address").Str + ", the first choice",
		"status 200", ": as predicted", "2 candidates"} {
		if out := explain("", "--id", id); !strings.Contains(out, want) {
			t.Errorf("of the past decision lacks %q:\n%s", want, out)
		}
	}
	earlier := gjson.Parse(string(must(lab.Get("http://" + l.Admin + "/decisions?n=2")))).Get("1.id").Str
	eventually(t, "the audit's verdict", func() bool { return strings.Contains(explain("", "--id", earlier), "stored      as predicted") })

	code, routed = call("/v1/route?book=true", string(raw))
	if code != 200 || !routed.Get("booked").Bool() || inFlight(t, l.Admin) != 1 {
		t.Errorf("booked: got %d %s, %d in flight; want 200, booked, 1 in flight",
			code, routed.Raw, inFlight(t, l.Admin))
	}
	if code, said := call("/v1/route/"+routed.Get("id").Str+"/end", `{"cached_tokens":1024,"prompt_tokens":1100}`); code != 204 ||
		inFlight(t, l.Admin) != 0 {
		t.Errorf("its end: got %d %s, %d in flight, want 204, 0", code, said.Raw, inFlight(t, l.Admin))
	}
	if got := gjson.Parse(explain("", "--id", routed.Get("id").Str, "-o", "json")); got.Get("reported_cached_tokens").Int() != 1024 ||
		got.Get("code").Int() != 200 {
		t.Errorf(`after its end: got %s, want got.Get("reported_cached_tokens").Int() == 1024, got.Get("code").Int() == 200`, got.Raw)
	}
	for path, want := range map[string]int{"/v1/route?path=/v1/embeddings": 400, "/v1/route/unknown/end": 404, "/explain?path=/health": 400} {
		if code, said := call(path, string(raw)); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, said.Raw, want)
		}
	}
	if code, said := call("/v1/route", `{"model":`); code != 400 {
		t.Errorf("no JSON: got %d %s, want 400", code, said.Raw)
	}
	if resp, err := http.Post("http://"+l.Admin+"/v1/route", "", strings.NewReader(string(raw))); err != nil ||
		resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: got %v %v, want no error, StatusCode %d", resp, err, http.StatusUnauthorized)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
