package router

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/changes"
)

// ask has a request answered by the first worker, which stores its prompt, and returns what is known of it.
func (w *world) ask(t *testing.T, request string) *Recent {
	t.Helper()
	d := w.decide(request)
	if len(d.Targets) == 0 {
		t.Fatalf("got %+v, want a worker", d)
	}
	w.stores(0, request)
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr, CachedTokens: -1})
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1, PromptTokens: d.PromptTokens})
	w.now = w.now.Add(time.Minute)
	r, _ := w.Decision(d.ID)
	return &r
}

// read returns a request's token ids; images' ids are replaced by what names them.
func (w *world) read(t *testing.T, request string) []uint64 {
	t.Helper()
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(request)}, &s, &req); err != nil {
		t.Fatal(err)
	}
	ps, err := w.prompts.Model().Read(t.Context(), "/v1/chat/completions", "", &req)
	if err != nil {
		t.Fatal(err)
	}
	p := &ps.List[0]
	ids := make([]uint64, len(p.IDs))
	for i := range ids {
		ids[i] = uint64(p.IDs[i])
	}
	for _, md := range p.Media {
		for i := range md.Length {
			ids[md.Offset+i] = md.Key | 1<<40
		}
	}
	return ids
}

// message is one of a planted chat.
type message struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

// chat is a planted chat.
type chat struct {
	system, tools string
	messages      []message
}

func (c chat) String() string {
	list, _ := json.Marshal(append([]message{{"system", c.system}}, c.messages...))
	request := fmt.Sprintf(`{"model":"m","messages":%s`, list)
	if c.tools != "" {
		request += `,"tools":` + c.tools
	}
	return request + "}"
}

// modelWithTools is the shipped model with a template that has tools behind the system text, as most have them.
func modelWithTools(t *testing.T) *engine.LiveModel {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(shippedModel, "chat_template.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	const end = "  {{ '<|im_end|>\\n' }}"
	if !bytes.Contains(file, []byte(end)) {
		t.Fatalf("the template has no %q, want it in file", end)
	}
	s := engine.DefaultServer()
	s.EngineModel, s.ChatTemplate = "m", filepath.Join(t.TempDir(), "tools.jinja")
	text := strings.Replace(string(file), end, `  {%- if loop.first and tools -%}
    {{ '\n\n# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' ~ (tool | tojson) }}{% endfor %}{{ '\n</tools>\nAnswer {"name": …}.' }}
  {%- endif -%}
`+end, 1)
	if err := os.WriteFile(s.ChatTemplate, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	live, err := engine.LoadLive("m", shippedModel, s, media)
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// plantedTools are tools, whose order and whose keys' order may be others.
func plantedTools(order []int, keys string) string {
	var list []string
	for _, i := range order {
		about := text(60, uint64(900+i))
		parameters := []string{`"type":"object"`, fmt.Sprintf(`"properties":{"where":{"type":"string","description":%q}}`, about)}
		if keys == "others" { // engines put those above into one order
			slices.Reverse(parameters)
		}
		list = append(list, fmt.Sprintf(`{"type":"function","function":{"name":"tool_%c","description":%q,"parameters":{%s}}}`, 'a'+i, about,
			strings.Join(parameters, ",")))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// planted is a change: two chats, and where and how they differ.
type planted struct {
	was, is    chat
	part, kind string
}

func plantedImage(seed uint64, width, height int) map[string]any {
	return imageAt("data:image/png;base64," + base64.StdEncoding.EncodeToString(png(seed, width, height)))
}

func imageAt(url string) map[string]any {
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}}
}

func long(words int, seed uint64) string { return strings.TrimSpace(text(words, seed)) }

// plantedChanges are changes at the beginning, in the middle and at the end, with and without images.
func plantedChanges() map[string]planted {
	image := func(seed uint64) map[string]any { return plantedImage(seed, 640, 480) }
	at := func(place string, words int, seed uint64, what string) string { // a text with something at its beginning, middle or end
		before := map[string]int{"beginning": 0, "middle": words / 2, "end": words}[place]
		return strings.TrimSpace(text(before, seed) + what + " " + text(words-before, seed+500))
	}
	all := map[string]planted{}
	for _, withImages := range []bool{false, true} {
		dialogue := func(seed uint64) (list []message) {
			for i := range uint64(4) {
				var content any = long(120, seed+10*i)
				if withImages {
					content = []any{image(seed + 10*i), map[string]any{"type": "text", "text": content}}
				}
				list = append(list, message{"user", content}, message{"assistant", long(120, seed+10*i+5)})
			}
			return append(list, message{"user", long(60, seed+77)})
		}
		name := func(what string) string {
			if withImages {
				return what + " with images"
			}
			return what
		}
		for _, place := range []string{"beginning", "middle", "end"} {
			for kind, pair := range map[string][2]string{"a date": {"Today is 2026-11-29.", "Today is 2026-12-01."},
				"a time of day": {"It is 17:05:33 now.", "It is 18:44:21 now."}, "a number": {"Request 48817.", "Request 91220."},
				"a uuid": {"Session 3f2b8c1e-7a54-4d0b-9e6f-1c2d3e4f5a6b.", "Session a81c09d2-55e3-4b7f-8a1d-90fe7c6b5a43."}} {
				d := dialogue(7)
				all[name(kind+" at the "+place+" of the system text")] = planted{chat{at(place, 300, 1, pair[0]), "", d},
					chat{at(place, 300, 1, pair[1]), "", d}, "the system text", kind}
			}
			for edited, i := range map[string]int{"beginning": 0, "middle": 4, "end": 8} {
				was, is := dialogue(17), dialogue(17)
				is[i].Content = at(place, 120, 99, "entirely other words stand here")
				was[i].Content = at(place, 120, 99, "some words that were better")
				if edited != "end" { // nothing follows there
					all[name("a message at the "+edited+" edited at its "+place)] = planted{chat{long(200, 3), "", was}, chat{long(200, 3), "", is},
						fmt.Sprintf("message %d (user)", i+2), "edited"}
				}
			}
		}
		d := dialogue(27)
		for keys, order := range map[string][]int{"tools in another order": {2, 0, 1}, "tools' keys in another order": {0, 1, 2}} {
			is := chat{long(200, 4), plantedTools(order, ""), d}
			if order[0] == 0 {
				is.tools = plantedTools(order, "others")
			}
			all[name(keys)] = planted{chat{long(200, 4), plantedTools([]int{0, 1, 2}, ""), d}, is, "the tools", "order"}
		}
		all[name("history cut")] = planted{chat{long(200, 5), "", d}, chat{long(200, 5), "", d[4:]}, "message 2 (user)", "earlier messages cut"}
		all[name("history summarized")] = planted{chat{long(200, 5), "", d},
			chat{long(200, 5), "", append([]message{{"user", "So far: " + long(90, 66)}}, d[3:]...)},
			"message 2 (user)", "earlier messages replaced by fewer"}
		thinks := dialogue(37)
		thinks[3].Content = "<think>\n" + long(80, 67) + "\n</think>\n\n" + thinks[3].Content.(string)
		all[name("reasoning dropped")] = planted{chat{long(200, 6), "", thinks}, chat{long(200, 6), "", dialogue(37)}, "message 5 (assistant)",
			"reasoning dropped"}
		all[name("reasoning added")] = planted{chat{long(200, 6), "", dialogue(37)}, chat{long(200, 6), "", thinks}, "message 5 (assistant)",
			"reasoning added"}
		if withImages {
			for form, other := range map[string]any{"other bytes of the same size": image(1000), "": plantedImage(1001, 641, 300),
				"another size of the same shape": plantedImage(1002, 320, 240)} {
				is := dialogue(7)
				is[4].Content.([]any)[0] = other
				all["another image: "+form] = planted{chat{long(200, 6), "", dialogue(7)}, chat{long(200, 6), "", is}, "image 3", form}
			}
		}
	}
	return all
}

// TestChanged plants changes and checks where and how prompts are found to depart from earlier ones, to the token, that the tokens which
// follow are under changed, and that of a change in one of several earlier prompts the right one is found.
func TestChanged(t *testing.T) {
	all := plantedChanges()
	withTools := modelWithTools(t)
	right, tokens, under, follows := 0, 0, 0, 0
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 1, withTools)
			w.ask(t, chat{long(50, 200), plantedTools([]int{1}, ""), []message{{"user", long(300, 201)}}}.String()) // nothing of it is shared
			w.ask(t, c.was.String())
			r := w.ask(t, c.is.String())
			was, is := w.read(t, c.was.String()), w.read(t, c.is.String())
			differs, same := 0, 0
			for differs < len(is) && differs < len(was) && was[differs] == is[differs] {
				differs++
			}
			for same < len(is)-differs && same < len(was)-differs && was[len(was)-1-same] == is[len(is)-1-same] {
				same++
			}
			change := r.Account.Change()
			if change == nil {
				t.Fatalf("no change is found, want one at token %d: %v", differs, r.Account.Says())
			}
			if change.Part != c.part || change.Kind != c.kind {
				t.Errorf("%s, want %s, %s", change, c.part, c.kind)
			}
			tokens++
			if change.Token == differs {
				right++
			} else {
				t.Logf("token %d, want %d", change.Token, differs)
			}
			got := r.Account.Uncached[account.Changed]
			under, follows = under+min(got, same), follows+same/16*16
			if got < same-mostBehind || got > len(is)-differs+16 {
				t.Errorf("%d tokens are under changed, want about the %d that are the same again: %v", got, same, r.Account.Says())
			}
		})
	}
	t.Logf("%d changes: token right in %d; %d of %d tokens that follow are under changed", tokens, right, under, follows)
	if 100*right < 98*tokens {
		t.Errorf("the token is right in %d of %d, want 98 %%", right, tokens)
	}
	if 100*under < 96*follows {
		t.Errorf("%d of %d tokens that follow are under changed, want 96 %%", under, follows)
	}
}

// TestChangedUnread plants the same changes in prompts that no rule reads, with reported tokens: part and kind are found, no token's place
// is told, and about as many tokens are under changed as follow. So are other forms of images by URL.
func TestChangedUnread(t *testing.T) {
	all := plantedChanges()
	signed := func(url string, seed uint64) chat {
		return chat{long(200, 6), "", []message{{"user", []any{imageAt(url), map[string]any{"type": "text", "text": long(150, seed)}}},
			{"assistant", long(100, seed+1)}, {"user", long(100, seed+2)}}}
	}
	const at = "https://images.example.com/1.png"
	all["a URL signed anew"] = planted{signed(at+"?Expires=1&Signature=a", 50), signed(at+"?Expires=2&Signature=b", 50), "image 1",
		"its URL signed anew"}
	all["another URL"] = planted{signed(at, 50), signed("https://images.example.com/2.png", 50), "image 1", ""}
	withTools := modelWithTools(t)
	under, follows := 0, 0
	for name, c := range all {
		if strings.HasPrefix(name, "another image: another size") { // only of its pixels' number something is known
			c.kind = ""
		}
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 1, withTools)
			read := w.prompts
			w.withoutFiles(nil)
			ids := func(c chat) []uint64 { // an image by URL is one of 640×480
				inline := "data:image/png;base64," + base64.StdEncoding.EncodeToString(png(9, 640, 480))
				return w.read(t, regexp.MustCompile(`https://images[^"]*`).ReplaceAllString(c.String(), inline))
			}
			ask := func(c chat) *account.Account {
				w.prompts = read
				tokens := len(ids(c))
				d := w.decide(c.String())
				w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr, CachedTokens: -1})
				w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, PromptTokens: tokens})
				w.now = w.now.Add(time.Minute)
				r, _ := w.Decision(d.ID)
				if n := r.Account.Uncached.Total(); n != tokens || r.Account.Tokens != tokens {
					t.Errorf("got %d tokens under causes of %d, want %d", n, r.Account.Tokens, tokens)
				}
				return r.Account
			}
			ask(chat{long(50, 200), plantedTools([]int{1}, ""), []message{{"user", long(300, 201)}}}) // nothing of it is shared
			ask(c.was)
			a := ask(c.is)
			change := a.Change()
			if change == nil || change.Part != c.part || change.Kind != c.kind || change.Token != -1 {
				t.Fatalf("got the change %v, want %s: %s, and no token: %v", change, c.part, c.kind, a.Says())
			}
			was, is, same := ids(c.was), ids(c.is), 0
			byURL := slices.Equal(was, is) // what follows the image is the same
			for same < len(is) && same < len(was) && was[len(was)-1-same] == is[len(is)-1-same] && (!byURL || is[len(is)-1-same] < 1<<40) {
				same++
			}
			under, follows = under+min(same, a.Uncached[account.Changed]), follows+same
			if got := a.Uncached[account.Changed]; got < same*8/10-mostBehind || got > same*12/10+mostBehind && c.part != "the tools" {
				t.Errorf("%d tokens are under changed, want about the %d that are the same again: %v", got, same, a.Says())
			}
		})
	}
	t.Logf("%d changes; %d of %d tokens that follow are under changed", len(all), under, follows)
	if 100*under < 90*follows {
		t.Errorf("%d of %d tokens that follow are under changed, want 90 %%", under, follows)
	}
}

const mostBehind = 160 // tokens that differ, up to the end of the chunk

// TestNotChanged checks that prompts which share no more than a template and short phrases are new, not changed.
func TestNotChanged(t *testing.T) {
	for _, read := range []bool{true, false} {
		t.Run(fmt.Sprint("read ", read), func(t *testing.T) { notChanged(t, read) })
	}
}

func notChanged(t *testing.T, read bool) {
	w := newWorld(t, 1)
	all, changed := 0, 0
	if !read {
		w.withoutFiles(nil)
	}
	for i := range uint64(60) {
		c := chat{system: "You are a helpful assistant. Answer in English, in short sentences, say so if you do not know.", messages: []message{
			{"user", "Please summarize this document for me:\n" + text(200, 1000+i) + "\nGive me five bullet points."},
			{"assistant", text(100, 2000+i)}, {"user", "Thanks. And now in one sentence, please: " + text(int(20+i), 3000+i)}}}
		if i%3 == 0 {
			c.messages[0].Content = []any{map[string]any{"type": "image_url", "image_url": map[string]any{
				"url": "data:image/png;base64," + base64.StdEncoding.EncodeToString(png(5000+i, 640, 480))}},
				map[string]any{"type": "text", "text": c.messages[0].Content}}
		}
		r := w.ask(t, c.String())
		all, changed = all+r.Account.Tokens, changed+r.Account.Uncached[account.Changed]
		if r.Account.Uncached[account.Changed] > 0 {
			t.Logf("%d: %v", i, r.Account.Says())
		}
	}
	if 1000*changed > all {
		t.Errorf("%d of %d tokens are under changed, want one of 1,000 at most", changed, all)
	}
}

// TestChangedForOthers checks that what one tenant or salt sent changes nothing in another's account.
func TestChangedForOthers(t *testing.T) {
	w := newWorld(t, 1)
	send := func(tenant, salt, date string) *account.Account {
		w.ids++
		request := chat{system: "It is " + date + ". " + text(300, 8), messages: []message{{"user", "hello"}}}.String()
		d := w.Decide(t.Context(), &Request{ID: fmt.Sprint(w.ids), Path: "/v1/chat/completions", Body: [][]byte{[]byte(request)},
			Tenant: tenant, Salt: &salt})
		return w.accountOf(t, d, d.PromptTokens, 0)
	}
	send("a", "x", "2026-11-29")
	if got := send("b", "x", "2026-11-30").Uncached[account.Changed]; got > 0 {
		t.Errorf("got %d tokens of a tenant changed by what another sent, want none", got)
	}
	if got := send("a", "y", "2026-12-01").Uncached[account.Changed]; got > 0 {
		t.Errorf("got %d tokens changed by what has another salt, want none", got)
	}
	if got := send("a", "x", "2026-12-02").Uncached[account.Changed]; got < 500 {
		t.Errorf("%d tokens are under changed by what the same tenant sent, want the rest of the prompt", got)
	}
	if a := send("a", "z", "2026-12-02"); a.Uncached[account.Salt] < 500 {
		t.Errorf("the same under another salt: %v, want most of it under salt", a.Says())
	}
}

// TestUnreadForOthers checks the same of prompts that no rule reads, and that a client which fills the memory pushes out no other's.
func TestUnreadForOthers(t *testing.T) {
	w := newWorld(t, 1)
	w.withoutFiles(nil)
	send := func(client fair.Client, tenant, salt, request string) *account.Account {
		w.ids++
		d := w.Decide(t.Context(), &Request{ID: fmt.Sprint(w.ids), Path: "/v1/chat/completions", Body: [][]byte{[]byte(request)},
			Tenant: tenant, Salt: &salt, Client: client})
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, PromptTokens: 1000})
		r, _ := w.Decision(d.ID)
		if n := r.Account.Uncached.Total(); n != 1000 {
			t.Errorf("got %d tokens under causes, want 1000", n)
		}
		return r.Account
	}
	at := func(date string) string {
		return chat{system: "It is " + date + ". " + text(300, 8), messages: []message{{"user", "hello"}}}.String()
	}
	send(1, "a", "x", at("2026-11-29"))
	if got := send(2, "b", "x", at("2026-11-30")).Uncached[account.Changed]; got > 0 {
		t.Errorf("got %d tokens of a tenant under changed by what another sent, want 0", got)
	}
	if got := send(1, "a", "y", at("2026-12-01")).Uncached[account.Changed]; got > 0 {
		t.Errorf("got %d tokens under changed by what has another salt, want 0", got)
	}
	for i := range uint64(110) { // a hostile client, with more words than there is room for
		w.now = w.now.Add(time.Minute)
		send(3, "c", "z", chat{system: text(60_000, 1000+i),
			messages: []message{{"user", text(60_000, 9000+i)}}}.String())
	}
	first := chat{system: "No. " + text(60_000, 1000), messages: []message{{"user", text(60_000, 9000)}}}
	if a := send(3, "c", "z", first.String()); a.Uncached[account.Changed] > 0 {
		t.Errorf("of a hostile client's first prompt got %v, want it forgotten: else the memory was not full", a.Says())
	}
	if a := send(1, "a", "x", at("2026-12-02")); a.Uncached[account.Changed] < 800 || a.Change() == nil || a.Change().Kind != "a date" {
		t.Errorf("the same tenant's earlier prompt: got %v, want most of it under changed, behind a date", a.Says())
	}
}

// TestPartsInVain checks that thousands of parts which a template has left out do not each cost a pass over the text.
func TestPartsInVain(t *testing.T) {
	f := partFinder{s: new(body.Skeleton), text: strings.Repeat("x", 1<<20) + "there", left: mostInVain}
	find := func(what string) (found bool) {
		f.list = nil
		f.find(changes.Message, 1, "user", gjson.Parse(`"`+what+`"`))
		return f.list != nil
	}
	for range 4 {
		if find("left out") {
			t.Fatal(`a part that the text does not have is found, want !find("left out")`)
		}
	}
	if !find("there") {
		t.Error(`behind 4 that were left out, one is not found, want find("there")`)
	}
	f.at = 0
	for range 4 + mostInVain>>20 {
		find("left out")
	}
	if find("there") {
		t.Error(`after more than mostInVain bytes, the text is still searched, want !find("there")`)
	}
}

// TestNotComparedWithoutReport checks that a request whose end nobody reports is not compared, under the ledger's lock, and keeps no room.
func TestNotComparedWithoutReport(t *testing.T) {
	w := newWorld(t, 1)
	first := chat{system: text(900, 1), messages: []message{{"user", "It is 17:05. " + text(900, 2)}}}
	w.decide(first.String())
	if w.comparisons.bytes.Load() == 0 {
		t.Fatal("got no comparison that waits, want one")
	}
	w.now = w.now.Add(48 * time.Hour)
	w.ask(t, chatBody("m", `"hello"`))
	if n := w.comparisons.bytes.Load(); n != 0 {
		t.Errorf("got %d bytes that wait to be compared, want 0", n)
	}
	first.messages[0].Content = "It is 18:44. " + text(900, 2)
	if got := w.ask(t, first.String()).Account.Uncached[account.Changed]; got > 0 {
		t.Errorf("got %d tokens under changed behind a request without a report, want 0", got)
	}
}

// TestExpiredDoesNotWait checks that the end of a request which nobody reports does not wait, under the ledger's lock, for a report of it
// that is being observed, and that then the latter drops the comparison.
func TestExpiredDoesNotWait(t *testing.T) {
	w := newWorld(t, 1)
	d := w.decide(chat{system: text(900, 1), messages: []message{{"user", "hello"}}}.String())
	at, _ := w.opt.Ledger.End(d.ID, 0)
	b := at.Note.(*bookingRecord)
	b.moves.Lock()
	w.follower.expired(at)
	if w.comparisons.bytes.Load() == 0 {
		t.Error("got the comparison dropped under another's hands, want it kept")
	}
	b.moves.Unlock()
	w.follower.dropAbandoned(b)
	if n := w.comparisons.bytes.Load(); n != 0 || b.comparison != nil {
		t.Errorf("got %d bytes that wait to be compared, want 0", n)
	}
}
