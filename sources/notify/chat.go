package notify

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"
	"github.com/nicholas-fedor/shoutrrr/pkg/util"
	"github.com/nicholas-fedor/shoutrrr/pkg/util/jsonclient"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/text"
)

// chat sends over one of shoutrrr's services. The library takes no context and
// keeps no time everywhere: a message is sent beside the one who waits, and while
// one hangs no other begins.
type chat struct {
	address   string
	service   string // "ntfy"
	transport func(unchecked bool) http.RoundTripper
	busy      chan struct{}
}

// titled are the services whose messages have a title of their own. For the
// others the title is the first line.
var titled = []string{"smtp", "ntfy", "gotify", "pushover", "pushbullet", "bark", "join", "opsgenie"}

// unusable are the services of the library that send nothing, or report success
// when they have not sent.
var unusable = []string{"logger", "telegram"}

// hosted are the services whose addresses name a server; the host of the others
// is part of the secret.
var hosted = []string{"smtp", "ntfy", "gotify", "matrix", "mattermost", "rocketchat", "zulip", "bark", "signal"}

func newChat(conf Config) (*chat, error) {
	address := conf.URL
	known := (&router.ServiceRouter{}).ListServices()
	slices.Sort(known)
	known = slices.DeleteFunc(known, func(s string) bool { return slices.Contains(unusable, s) })
	service := serviceOf(address)
	switch {
	case service == "":
		return nil, &fault.Error{Op: "it is not the address of a chat service", Hint: "write one like ntfy://ntfy.sh/topic"}
	case service == "telegram":
		return nil, &fault.Error{Op: "telegram:// loses messages without a word when Telegram cannot be reached",
			Hint: "write generic://api.telegram.org/botTOKEN/sendMessage?template=json&messagekey=text&$chat_id=CHAT"}
	case !slices.Contains(known, service):
		return nil, &fault.Error{Op: "its service is not known", Hint: "known are " + strings.Join(known, ", ") + "; for a web address write kind: webhook"}
	}
	transport, err := conf.transport()
	if err != nil {
		return nil, err
	}
	c := &chat{address: address, service: service, transport: transport, busy: make(chan struct{}, 1)}
	// Matrix is asked when its service is made, and no request is made yet.
	if service != "matrix" {
		if _, err := c.make(); err != nil {
			return nil, &fault.Error{Op: "it is not an address that " + service + " takes", Err: c.clean(err),
				Hint: "the forms are at https://shoutrrr.nickfedor.com, under Services"}
		}
	}
	return c, nil
}

// make makes the service, with our client where it takes one, and without a logger:
// it would see the address.
func (c *chat) make() (types.Service, error) {
	u, err := url.Parse(c.address)
	if err != nil {
		return nil, err
	}
	s, err := (&router.ServiceRouter{}).NewService(c.service)
	if err != nil {
		return nil, err
	}
	if err := s.Initialize(u, util.DiscardLogger); err != nil {
		return nil, err
	}
	if give := clientOf[c.service]; give != nil {
		give(s, c.client)
	}
	return s, nil
}

// Send implements Target.
func (c *chat) Send(ctx context.Context, n Notice) error {
	select {
	case c.busy <- struct{}{}:
	default:
		return &fault.Error{Op: c.service + " has not answered the message before"}
	}
	sent := make(chan error, 1)
	go func() {
		err := c.send(n)
		<-c.busy // before it is reported: then the next may come
		sent <- err
	}()
	select {
	case err := <-sent:
		if err == nil {
			return nil
		}
		return &fault.Error{Op: c.service + " does not take the message", Err: c.clean(err)}
	case <-ctx.Done():
		return stopError(ctx)
	}
}

func (c *chat) send(n Notice) (err error) {
	n = n.defuse()
	defer func() {
		if recover() != nil { // its words could hold the address
			err = errors.New("internal error of the library")
		}
	}()
	s, err := c.make()
	if err != nil {
		return err
	}
	params := types.Params{}
	text := n.title() + ": " + n.text()
	if u, err := url.Parse(c.address); slices.Contains(titled, c.service) && err == nil && !u.Query().Has("title") && !u.Query().Has("subject") {
		params.SetTitle(n.title())
		text = n.text()
	}
	return s.Send(text, &params)
}

var (
	anAddress = pattern.New(`"?[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"]*"?`)
	between   = pattern.New(`[^\p{L}\p{N}]+`)
)

// clean is an error of the library without anything of the address, which it
// likes to quote. What the service answered is text from outside, and cut.
func (c *chat) clean(err error) error {
	words := err.Error()
	if ue, ok := errors.AsType[*url.Error](err); ok {
		words = ue.Err.Error()
	} else if je, ok := errors.AsType[jsonclient.Error](err); ok && je.StatusCode != 0 {
		words = "it answers " + formatStatus(je.StatusCode) + " " + je.Body
	}
	words = anAddress.ReplaceAllString(words, "[address]")
	for _, part := range c.secrets() {
		words = strings.ReplaceAll(words, part, "[redacted]")
	}
	words = text.OneLine(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, words))
	if r := []rune(words); len(r) > 300 {
		words = string(r[:300]) + "…"
	}
	return errors.New(words)
}

// secrets are the parts of the address that could be one, the longest first, as
// they are written and decoded.
func (c *chat) secrets() []string {
	var whole []string
	add := func(parts ...string) {
		for _, p := range parts {
			whole = append(whole, p)
			if decoded, err := url.QueryUnescape(p); err == nil {
				whole = append(whole, decoded)
			}
			if decoded, err := url.PathUnescape(p); err == nil {
				whole = append(whole, decoded)
			}
		}
	}
	u, err := url.Parse(c.address)
	if err != nil {
		return []string{c.address}
	}
	if u.User != nil {
		password, _ := u.User.Password()
		add(u.User.Username(), password, u.User.String(), base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)))
	}
	if !slices.Contains(hosted, c.service) {
		add(u.Host, u.Hostname(), u.Port())
	}
	add(strings.Split(u.EscapedPath(), "/")...)
	for _, values := range u.Query() {
		add(values...)
	}
	add(u.Fragment)
	var parts []string
	for _, w := range whole {
		if len(w) >= 3 && w != c.service {
			parts = append(parts, w)
		}
		for _, p := range between.Split(w, -1) {
			if len(p) >= 4 && p != c.service {
				parts = append(parts, p)
			}
		}
	}
	slices.SortFunc(parts, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(parts)
}
