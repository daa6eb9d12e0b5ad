package pvesh

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
)

// Access is how the stand-in for pvesh reaches the lab's Proxmox VE. The real
// pvesh needs nothing of this: it runs the API's own code as root@pam.
type Access struct {
	URL      string `json:"url"`
	CA       string `json:"ca"`
	Password string `json:"password"` // of root@pam
	// Host is the member of the Proxmox VE cluster that is asked; "" is the first.
	Host string `json:"host,omitempty"`
}

// ExitError ends the program with a code; what is wrong was printed.
type ExitError int

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("pvesh ended with code %d", int(e)) }

// Run does what pvesh does with these arguments: what it prints, and whether it
// succeeds. It writes its own complaint, in pvesh's words.
func Run(ctx context.Context, stdout, stderr io.Writer, access Access, args []string) error {
	complain := func(text string) error {
		_, _ = fmt.Fprint(stderr, strings.TrimRight(text, "\n")+"\n")
		// Perl ends with errno where it is not 0, else with 255: nobody can rely
		// on more than that it is not 0.
		return ExitError(255)
	}
	q, err := parseCall(args)
	if err != nil {
		return complain(err.Error())
	}
	root, err := access.logIn(ctx)
	if err != nil {
		return err
	}
	defer root.client.CloseIdleConnections()
	status, got, err := root.send(ctx, q.method, q.path, q.options)
	switch {
	case err != nil:
		return err
	case status == http.StatusNotImplemented:
		_, _ = fmt.Fprintf(stderr, "No '%s' handler defined for '%s'\n", q.command, q.path)
		return ExitError(1)
	case status == http.StatusBadRequest || status == http.StatusForbidden:
		text := fmt.Sprintf("%d %s\n", status, strings.TrimSpace(got.Message))
		for _, param := range slices.Sorted(maps.Keys(got.Errors)) {
			text += fmt.Sprintf("%s: %s\n", param, strings.TrimSpace(got.Errors[param]))
		}
		if status == http.StatusBadRequest {
			text += fmt.Sprintf("pvesh %s <api_path> [OPTIONS] [FORMAT_OPTIONS]", q.command)
		}
		return complain(text)
	case status != http.StatusOK:
		return complain(got.Message)
	case q.quiet || got.Data == nil:
		return nil
	}
	e := json.NewEncoder(stdout) // sorts keys, as pvesh does
	e.SetEscapeHTML(false)
	switch q.format {
	case "json":
	case "json-pretty":
		e.SetIndent("", "   ")
	default:
		return complain("this stand-in for pvesh draws no tables: say --output-format json")
	}
	return e.Encode(got.Data)
}

// call is a command line of pvesh.
type call struct {
	command, method, path, format string
	quiet                         bool
	options                       url.Values
}

// parseCall reads the arguments of pvesh. A value may be in the same word or in
// the next one; without one an option is a boolean that is set.
func parseCall(args []string) (call, error) {
	q := call{format: "text", options: url.Values{}}
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

// session is root@pam with a ticket.
type session struct {
	access       Access
	client       *http.Client
	ticket, csrf string
}

// answer is what the API answers, well or ill.
type answer struct {
	Data    any               `json:"data"`
	Message string            `json:"message"`
	Errors  map[string]string `json:"errors"`
}

func (a Access) logIn(ctx context.Context) (*session, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(a.CA)) {
		return nil, errors.New("the door of the lab has no certificate")
	}
	r := &session{access: a, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}}
	status, got, err := r.send(ctx, http.MethodPost, "/access/ticket", url.Values{"username": {"root@pam"}, "password": {a.Password}})
	if err != nil {
		r.client.CloseIdleConnections()
		return nil, err
	}
	data, _ := got.Data.(map[string]any)
	r.ticket, _ = data["ticket"].(string)
	r.csrf, _ = data["CSRFPreventionToken"].(string)
	if status != http.StatusOK || r.ticket == "" {
		r.client.CloseIdleConnections()
		return nil, fmt.Errorf("log in to the lab as root@pam: %d %s", status, got.Message)
	}
	return r, nil
}

func (r *session) send(ctx context.Context, method, path string, options url.Values) (int, answer, error) {
	address, body := r.access.URL+"/api2/json"+path, ""
	if method == http.MethodGet || method == http.MethodDelete {
		address += "?" + options.Encode()
	} else {
		body = options.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return 0, answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Host = cmp.Or(r.access.Host, req.Host)
	if r.ticket != "" {
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: r.ticket})
		req.Header.Set("CSRFPreventionToken", r.csrf)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, answer{}, err
	}
	got := answer{Message: strings.TrimPrefix(resp.Status, fmt.Sprintf("%d ", resp.StatusCode))}
	if len(text) > 0 {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		status := got.Message
		if err := d.Decode(&got); err != nil {
			return 0, answer{}, fmt.Errorf("%s %s: %w", method, path, err)
		}
		got.Message = cmp.Or(got.Message, status)
	}
	return resp.StatusCode, got, nil
}

// Install writes the stand-in and what it needs below dir. program is what has
// the command "lab pvesh".
func Install(dir, program string, access Access) error {
	text, err := json.Marshal(access)
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
	script := fmt.Sprintf("#!/bin/sh\n# Stands in for the pvesh of a Proxmox VE host.\nexec %s lab pvesh %s \"$@\"\n", QuoteWord(program), QuoteWord(file))
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

// QuoteWord quotes a word for a shell where it needs to be.
func QuoteWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@,%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
