package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// labDoor is how the stand-in for pvesh gets at the lab's Proxmox VE. The real
// pvesh needs nothing of this: it runs the API's own code as root@pam.
type labDoor struct {
	URL      string `json:"url"`
	CA       string `json:"ca"`
	Password string `json:"password"` // of root@pam
	// Host is the member of the Proxmox VE cluster that is asked; "" is the first.
	Host string `json:"host,omitempty"`
}

// newLabPvesh is what the pvesh runs that a bare lab host has.
func newLabPvesh(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:                "pvesh DOOR {get|set|create|delete} PATH [--OPTION VALUE]...",
		Short:              "Stand in for pvesh on a make-believe host",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("lab pvesh: which door?")}
			}
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var door labDoor
			if err := json.Unmarshal(text, &door); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return standIn(cmd.Context(), env, door, args[1:])
		},
	}
}

// standIn does what pvesh does with these arguments: what it prints, and whether
// it succeeds. It writes its own complaint, in pvesh's words.
func standIn(ctx context.Context, env *environment, door labDoor, args []string) error {
	complain := func(text string) error {
		_, _ = fmt.Fprint(env.stderr, strings.TrimRight(text, "\n")+"\n")
		// Perl ends with errno where it is not 0, else with 255: nobody can rely
		// on more than that it is not 0.
		return errSilent(255)
	}
	q, err := parsePvesh(args)
	if err != nil {
		return complain(err.Error())
	}
	root, err := door.login(ctx)
	if err != nil {
		return err
	}
	defer root.client.CloseIdleConnections()
	status, answer, err := root.do(ctx, q.method, q.path, q.options)
	switch {
	case err != nil:
		return err
	case status == http.StatusNotImplemented:
		_, _ = fmt.Fprintf(env.stderr, "No '%s' handler defined for '%s'\n", q.command, q.path)
		return errSilent(1)
	case status == http.StatusBadRequest || status == http.StatusForbidden:
		text := fmt.Sprintf("%d %s\n", status, strings.TrimSpace(answer.Message))
		for _, param := range slices.Sorted(maps.Keys(answer.Errors)) {
			text += fmt.Sprintf("%s: %s\n", param, strings.TrimSpace(answer.Errors[param]))
		}
		if status == http.StatusBadRequest {
			text += fmt.Sprintf("pvesh %s <api_path> [OPTIONS] [FORMAT_OPTIONS]", q.command)
		}
		return complain(text)
	case status != http.StatusOK:
		return complain(answer.Message)
	case q.quiet || answer.Data == nil:
		return nil
	}
	e := json.NewEncoder(env.stdout) // sorts keys, as pvesh does
	e.SetEscapeHTML(false)
	switch q.format {
	case "json":
	case "json-pretty":
		e.SetIndent("", "   ")
	default:
		return complain("this stand-in for pvesh draws no tables: say --output-format json")
	}
	return e.Encode(answer.Data)
}

// pveshCall is a command line of pvesh.
type pveshCall struct {
	command, method, path, format string
	quiet                         bool
	options                       url.Values
}

// parsePvesh reads the arguments of pvesh. A value may be in the same word or in
// the next one; without one an option is a boolean that is set.
func parsePvesh(args []string) (pveshCall, error) {
	q := pveshCall{format: "text", options: url.Values{}}
	for len(args) > 0 && (args[0] == "--noproxy" || args[0] == "--nooutput") {
		q.quiet = q.quiet || args[0] == "--nooutput"
		args = args[1:]
	}
	if len(args) == 0 {
		return q, errors.New("ERROR: no command specified")
	}
	q.command = args[0]
	if q.method = map[string]string{"get": http.MethodGet, "set": http.MethodPut, "create": http.MethodPost, "delete": http.MethodDelete}[q.command]; q.method == "" {
		return q, fmt.Errorf("ERROR: unknown command 'pvesh %s'", q.command)
	}
	for i := 1; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "-")
		if !ok && q.path == "" {
			q.path = args[i]
			continue
		}
		if !ok {
			return q, errors.New("400 too many arguments")
		}
		name, value, has := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if !has && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			i++
			value, has = args[i], true
		}
		if !has {
			value = "1"
		}
		switch name {
		case "output-format":
			q.format = value
		case "quiet":
			q.quiet = value == "1"
		case "human-readable", "noborder", "noheader", "noproxy":
		default:
			q.options.Add(name, value)
		}
	}
	if q.path == "" {
		return q, errors.New("400 not enough arguments")
	}
	q.path = "/" + strings.Trim(q.path, "/")
	return q, nil
}

// labRoot is root@pam with a ticket.
type labRoot struct {
	door         labDoor
	client       *http.Client
	ticket, csrf string
}

// pveAnswer is what the API answers, well or ill.
type pveAnswer struct {
	Data    any               `json:"data"`
	Message string            `json:"message"`
	Errors  map[string]string `json:"errors"`
}

func (d labDoor) login(ctx context.Context) (*labRoot, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(d.CA)) {
		return nil, errors.New("the door of the lab has no certificate")
	}
	r := &labRoot{door: d, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}}
	status, answer, err := r.do(ctx, http.MethodPost, "/access/ticket", url.Values{"username": {"root@pam"}, "password": {d.Password}})
	if err != nil {
		r.client.CloseIdleConnections()
		return nil, err
	}
	data, _ := answer.Data.(map[string]any)
	r.ticket, _ = data["ticket"].(string)
	r.csrf, _ = data["CSRFPreventionToken"].(string)
	if status != http.StatusOK || r.ticket == "" {
		r.client.CloseIdleConnections()
		return nil, fmt.Errorf("log in to the lab as root@pam: %d %s", status, answer.Message)
	}
	return r, nil
}

func (r *labRoot) do(ctx context.Context, method, path string, options url.Values) (int, pveAnswer, error) {
	address, body := r.door.URL+"/api2/json"+path, ""
	if method == http.MethodGet || method == http.MethodDelete {
		address += "?" + options.Encode()
	} else {
		body = options.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return 0, pveAnswer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Host = cmp.Or(r.door.Host, req.Host)
	if r.ticket != "" {
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: r.ticket})
		req.Header.Set("CSRFPreventionToken", r.csrf)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, pveAnswer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, pveAnswer{}, err
	}
	answer := pveAnswer{Message: strings.TrimPrefix(resp.Status, fmt.Sprintf("%d ", resp.StatusCode))}
	if len(text) > 0 {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		said := answer.Message
		if err := d.Decode(&answer); err != nil {
			return 0, pveAnswer{}, fmt.Errorf("%s %s: %w", method, path, err)
		}
		answer.Message = cmp.Or(answer.Message, said)
	}
	return resp.StatusCode, answer, nil
}

// writePvesh writes the stand-in and what it needs below dir. program is this
// program.
func writePvesh(dir, program string, door labDoor) error {
	text, err := json.Marshal(door)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "pvesh.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	bin := filepath.Join(dir, "usr", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\n# Stands in for the pvesh of a Proxmox VE host.\nexec %s lab pvesh %s \"$@\"\n", shellWord(program), shellWord(file))
	return writeProgram(filepath.Join(bin, "pvesh"), script)
}

// writeProgram writes a script that is to be run. A process that is started in
// the same moment would hold it open for writing until its own program runs, and
// so long the kernel runs no such file.
func writeProgram(path, script string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(script), 0o755)
}

// shellWord quotes a word for a shell where it needs to be.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@,%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
