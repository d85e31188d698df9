package bus

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/nats-io/nkeys"

	"github.com/sightline-router/sightline/internal/secure"
)

//go:embed users.conf.tmpl
var usersTemplate string

const (
	routerSeed = "router.nk"
	anySeed    = "agents.nk" // may publish for every worker
	usersFile  = "users.conf"
)

// AnyWorker stands for a worker's name in WriteUsers: an agent that may publish for every worker.
const AnyWorker = "*"

// WriteUsers creates a user of a NATS server for the routers and one for each worker's agent: a file with a seed in dir for each,
// 0600, and users.conf, the nats-server configuration that lists them and grants each only what it needs. Existing seeds stay,
// and so do their users: if a seed is deleted, its user is left out the next time. It returns the names of the new files.
//
// An agent must never have the right to create a consumer, even of its own events: the server delivers a push consumer's messages
// to whatever subject its creator names, regardless of permissions (nats-server 2.15), so it could answer for another worker.
func WriteUsers(dir string, workers []string) (made []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	names := []string{routerSeed}
	for _, w := range workers {
		switch w {
		case "":
			return nil, errors.New("a worker without a name")
		case AnyWorker:
			names = append(names, anySeed)
		default:
			names = append(names, "agent-"+token(w)+".nk")
		}
	}
	for _, name := range names {
		made, err = makeSeed(dir, name, made)
		if err != nil {
			return made, err
		}
	}
	type user struct{ Name, Key, Token string }
	view := struct {
		Stream, State, Keys string
		Router, Agents      []user
	}{Stream: EventStream, State: StateStream, Keys: secretStream}
	files, err := filepath.Glob(filepath.Join(dir, "*.nk"))
	if err != nil {
		return made, err
	}
	for _, file := range files {
		key, err := publicKey(file)
		if err != nil {
			return made, err
		}
		name := strings.TrimSuffix(filepath.Base(file), ".nk")
		worker, isAgent := strings.CutPrefix(name, "agent-")
		switch {
		case name+".nk" == routerSeed:
			view.Router = append(view.Router, user{name, key, ""})
		case name+".nk" == anySeed:
			view.Agents = append(view.Agents, user{name, key, AnyWorker})
		case isAgent && strings.Trim(worker, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=") == "":
			view.Agents = append(view.Agents, user{name, key, worker})
		}
	}
	var text bytes.Buffer
	if err := template.Must(template.New(usersFile).Parse(usersTemplate)).Execute(&text, view); err != nil {
		return made, err
	}
	tmp := filepath.Join(dir, "."+usersFile)
	if err := os.WriteFile(tmp, text.Bytes(), 0o644); err != nil {
		return made, err
	}
	return append(made, usersFile), os.Rename(tmp, filepath.Join(dir, usersFile))
}

// makeSeed writes a file with a new user's seed, if there is none.
func makeSeed(dir, name string, made []string) ([]string, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return made, nil
	} else if err != nil {
		return made, err
	}
	key, err := nkeys.CreateUser()
	if err == nil {
		var seed []byte
		seed, err = key.Seed()
		if err == nil {
			_, err = f.Write(append(seed, '\n'))
		}
	}
	return append(made, name), errors.Join(err, f.Close())
}

func publicKey(file string) (string, error) {
	text, err := secure.ReadFile(file)
	if err != nil {
		return "", err
	}
	key, err := nkeys.FromSeed(bytes.TrimSpace(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w (want a user's seed; delete the file to have a new one)", file, err)
	}
	return key.PublicKey()
}
