package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
)

// Random requests against vLLM's own render server (`vllm launch render`), which answers with the token ids that an engine would
// prefill, or with the error that it would return. SIGHTLINE_VLLM is where vLLM is installed (make e2e-vllm); SIGHTLINE_RENDER, if
// set, is a running server, SIGHTLINE_SEED the seed of the first of SIGHTLINE_CASES requests.

const shippedModel = "../examples/models/qwen2.5-vl"

func TestDifferentialVLLM(t *testing.T) {
	dir := shippedModel
	base := os.Getenv("SIGHTLINE_RENDER")
	if d := os.Getenv("SIGHTLINE_RENDER_MODEL"); d != "" {
		dir = d
	}
	if base == "" {
		venv := os.Getenv("SIGHTLINE_VLLM")
		if venv == "" {
			t.Skip("needs a real vLLM: make differential-vllm")
		}
		base = renderServer(t, venv, dir)
	}
	s := DefaultServer()
	s.EngineModel, s.MaxModelLen, s.TrustMMKwargs, s.TrustChatTemplate, s.TrustUUID = "m", 20000, true, true, true
	for _, set := range strings.Fields(os.Getenv("SIGHTLINE_RENDER_SET")) {
		key, v, _ := strings.Cut(set, "=")
		switch key {
		case "tokenizer_mode":
			s.TokenizerMode = v
		case "tools":
			s.AutoToolChoice = v == "true"
		case "template":
			s.ChatTemplate = v
		case "format":
			s.ContentFormat = v
		}
	}
	media, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	m, err := Load("m", dir, s, media)
	if err != nil {
		t.Fatal(err)
	}
	seed, cases := number("SIGHTLINE_SEED", 1), number("SIGHTLINE_CASES", 600)
	var equal, refused, early, late, open, wrong int
	for i := range cases {
		endpoint, body := randomRequest(uint64(seed + i))
		status, want, text := rendered(t, base+endpoint+"/render", body)
		got, why, err := predicted(m, endpoint, body)
		says := func(what string) { t.Errorf("seed %d: %s\n%s %s", seed+i, what, endpoint, body) }
		var no *Refused
		switch {
		case status != 200 && errors.As(err, &no):
			refused++
		case status != 200 && err != nil:
			open++
		case status != 200: // such a request stores nothing, though we predict that it does
			late++
			if os.Getenv("SIGHTLINE_LATE") != "" {
				t.Logf("seed %d: not foreseen: %s\n%s %s", seed+i, text, endpoint, body)
			}
		case errors.As(err, &no):
			early++
			says("refused by us (" + no.Reason + "), rendered by vLLM")
		case err != nil || why != "":
			open++
			if os.Getenv("SIGHTLINE_LATE") != "" {
				t.Logf("seed %d: not exact: %v %s\n%s %s", seed+i, err, why, endpoint, body)
			}
		case !slices.EqualFunc(got, want, slices.Equal[[]uint32]):
			wrong++
			for k := range want {
				if k < len(got) && !slices.Equal(got[k], want[k]) {
					p := 0
					for p < min(len(got[k]), len(want[k])) && got[k][p] == want[k][p] {
						p++
					}
					tok := m.prompt.Tokenizer()
					says(fmt.Sprintf("prompt %d differs at %d of %d and %d:\nours   %q\nvLLM's %q", k, p, len(got[k]), len(want[k]),
						tok.Decode(got[k][max(0, p-5):min(len(got[k]), p+25)], false), tok.Decode(want[k][max(0, p-5):min(len(want[k]), p+25)], false)))
					break
				}
			}
			if len(got) != len(want) {
				says(fmt.Sprintf("%d prompts, vLLM has %d", len(got), len(want)))
			}
		default:
			equal++
		}
	}
	t.Logf("%d requests: %d equal, %d refused by both; %d errors not foreseen, %d not exact; %d refused too early, %d differ",
		cases, equal, refused, late, open, early, wrong)
}

func number(key string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(key)); err == nil {
		return n
	}
	return otherwise
}

// renderServer starts vLLM's render server for a model.
func renderServer(t *testing.T, venv, dir string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(venv, "bin", "vllm"), "launch", "render", abs, "--served-model-name", "m", "--host",
		"127.0.0.1", "--port", strconv.Itoa(port),
		"--max-model-len", "20000", "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
		"--trust-request-chat-template", "--trust-request-mm-kwargs")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(venv, "bin")+":"+os.Getenv("PATH"), "HF_HUB_OFFLINE=1",
		"VLLM_NO_USAGE_STATS=1", "VLLM_HOST_IP=127.0.0.1", "OMP_NUM_THREADS=1")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() && log.Len() > 0 {
			t.Logf("vLLM: …%s", log.Bytes()[max(0, log.Len()-2000):])
		}
	})
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	for end := time.Now().Add(6 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		if resp, err := http.Get(base + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return base
			}
		}
		if time.Now().After(end) {
			t.Fatal("vLLM's render server did not start")
		}
	}
}

// rendered posts a request to vLLM.
func rendered(t *testing.T, url, body string) (status int, prompts [][]uint32, text string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil, string(answer[:min(len(answer), 600)])
	}
	type one struct {
		TokenIDs []uint32 `json:"token_ids"`
	}
	var many []one
	if answer[0] != '[' {
		answer = slices.Concat([]byte("["), answer, []byte("]"))
	}
	if err := json.Unmarshal(answer, &many); err != nil {
		t.Fatal(err)
	}
	for _, p := range many {
		prompts = append(prompts, p.TokenIDs)
	}
	return 200, prompts, ""
}

// predicted returns what this package makes of a request; why is "" if it is exact.
func predicted(m *Model, endpoint, skeleton string) (prompts [][]uint32, why string, err error) {
	var s body.Skeleton
	if err := s.Scan([][]byte{[]byte(skeleton)}); err != nil {
		return nil, "", err
	}
	var req body.Request
	if err := body.Parse(&s, &req); err != nil {
		return nil, "", err
	}
	ps, err := m.Read(context.Background(), endpoint, "", &req)
	if err != nil {
		return nil, "", err
	}
	for i := range ps.List {
		if p := &ps.List[i]; !p.Exact && why == "" {
			why = p.Why
		}
		prompts = append(prompts, ps.List[i].IDs)
	}
	return prompts, why, nil
}
