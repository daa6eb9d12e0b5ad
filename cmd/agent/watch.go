package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// retryEvery is how often a daemon that went away is looked for.
const retryEvery = 500 * time.Millisecond

// errAway is told to whoever watches while the daemon is away.
var errAway = errors.New("the daemon is away; waiting for it to come back")

// persist asks a question that goes on, and asks it again when the daemon comes
// back. A daemon that was never there is an error. away is told errAway when it
// goes, and nil when it is back.
func persist(ctx context.Context, away func(error) error, question func(asked func()) error) error {
	been, gone := false, false
	for {
		var told error
		err := question(func() {
			been = true
			if gone {
				gone, told = false, away(nil)
			}
		})
		// A daemon that has just begun does not know its clusters yet.
		var e *api.Error
		starting := been && errors.As(err, &e) && e.Message == api.ErrStarting.Error()
		switch {
		case ctx.Err() != nil:
			return errStopped
		case told != nil:
			return told
		case !errors.Is(err, api.ErrEnded) && !(been && errors.Is(err, api.ErrNoDaemon)) && !starting:
			return err
		case !gone:
			gone = true
			if err := away(errAway); err != nil {
				return err
			}
		}
		if err := pause(ctx, retryEvery); err != nil {
			return err
		}
	}
}

// watchStatus shows the statuses as they change, until it is stopped: in place
// on a terminal, one line for each change or one JSON value elsewhere.
func watchStatus(ctx context.Context, env *environment, c *api.Client, p printer, args []string) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	var show watcher
	f, ok := env.stdout.(*os.File)
	switch {
	case p.json:
		show = &jsonWatcher{w: env.stdout, had: map[string]bool{}}
	case ok && term.IsTerminal(int(f.Fd())):
		show = newScreen(f, p)
	default:
		show = &lineWatcher{p: p, had: map[string]cluster.Status{}}
	}
	w := &watched{show: show, all: map[string]cluster.Status{}}
	err := w.run(ctx, c, name)
	if errors.Is(err, errStopped) || err == nil {
		return errSilent(worst(w.list()))
	}
	return err
}

// watcher shows what changes.
type watcher interface {
	// show takes what is there now, of which changed is what is new, and the
	// trouble that is no cluster's.
	show(all []cluster.Status, changed *cluster.Status, trouble []string, away error) error
	// ticks tells when to show the same again, because time goes by; nil: never.
	ticks() <-chan time.Time
	begin() error
	end()
}

// watched is what whoever watches has been told.
type watched struct {
	show    watcher
	all     map[string]cluster.Status
	trouble []string
}

func (w *watched) list() []cluster.Status {
	var out []cluster.Status
	for _, s := range w.all {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b cluster.Status) int { return strings.Compare(a.Cluster, b.Cluster) })
	return out
}

// run hands everything to the watcher on one goroutine.
func (w *watched) run(ctx context.Context, c *api.Client, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type news struct {
		status *cluster.Status
		about  *api.About
		away   error
	}
	came, ended := make(chan news), make(chan error, 1)
	hand := func(n news) error {
		select {
		case came <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	about := func(a api.About) error { return hand(news{about: &a}) }
	go func() {
		ended <- persist(ctx, func(err error) error { return hand(news{away: err}) }, func(asked func()) error {
			return c.Watch(ctx, name, func() { asked(); _ = hand(news{}) }, func(s cluster.Status) error { return hand(news{status: &s}) }, about)
		})
	}()
	began := false
	defer func() {
		if began {
			w.show.end()
		}
	}()
	var away error
	for {
		var changed *cluster.Status
		select {
		case err := <-ended:
			return err
		case <-w.show.ticks():
		case n := <-came:
			if !began {
				if err := w.show.begin(); err != nil {
					return err
				}
				began = true
				if n == (news{}) {
					continue // what there is comes next: that nothing is known is not shown before
				}
			}
			away, changed = n.away, n.status
			if changed != nil {
				w.all[changed.Cluster] = *changed
			}
			if n.about != nil {
				w.trouble = n.about.Trouble
				if names := n.about.Clusters; names != nil {
					maps.DeleteFunc(w.all, func(name string, _ cluster.Status) bool { return !slices.Contains(names, name) })
				}
			}
		}
		if !began {
			continue
		}
		if err := w.show.show(w.list(), changed, w.trouble, away); err != nil {
			cancel()
			<-ended
			return err
		}
	}
}

// jsonWatcher writes one envelope a line: a status, or which cluster is not looked
// after any more.
type jsonWatcher struct {
	w   io.Writer
	had map[string]bool
}

// statusGone is the last that is told of a cluster.
type statusGone struct {
	Cluster string `json:"cluster"`
}

func (j *jsonWatcher) show(all []cluster.Status, changed *cluster.Status, _ []string, _ error) error {
	for _, name := range gone(j.had, all) {
		if err := jsonLine(j.w, "StatusGone", statusGone{name}); err != nil {
			return err
		}
		delete(j.had, name)
	}
	if changed == nil {
		return nil
	}
	j.had[changed.Cluster] = true
	return jsonLine(j.w, "Status", changed)
}
func (*jsonWatcher) ticks() <-chan time.Time { return nil }
func (*jsonWatcher) begin() error            { return nil }
func (*jsonWatcher) end()                    {}

// gone are the clusters that were told of and are not there any more.
func gone[T any](had map[string]T, all []cluster.Status) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(had)), func(name string) bool {
		return slices.ContainsFunc(all, func(s cluster.Status) bool { return s.Cluster == name })
	})
}

// jsonLine writes one envelope on one line.
func jsonLine(w io.Writer, kind string, v any) error {
	return json.NewEncoder(w).Encode(envelope{kind, "v1", v})
}

// lineWatcher writes a line for each change.
type lineWatcher struct {
	p       printer
	had     map[string]cluster.Status
	trouble []string
	was     error // away
}

func (l *lineWatcher) show(all []cluster.Status, changed *cluster.Status, trouble []string, away error) error {
	at := time.Now().Format(time.TimeOnly)
	if away != nil && l.was == nil {
		l.p.printf("%s %v\n", at, away)
	}
	if away == nil && l.was != nil {
		l.p.printf("%s the daemon is back\n", at)
	}
	l.was = away
	for _, t := range trouble {
		if !slices.Contains(l.trouble, t) {
			l.p.printf("%s trouble %s\n", at, text.OneLine(t))
		}
	}
	for _, t := range l.trouble {
		if !slices.Contains(trouble, t) {
			l.p.printf("%s trouble is over: %s\n", at, text.OneLine(t))
		}
	}
	l.trouble = trouble
	for _, name := range gone(l.had, all) {
		l.p.printf("%s %s is not looked after any more\n", at, name)
		delete(l.had, name)
	}
	if changed == nil {
		return nil
	}
	before, ok := l.had[changed.Cluster]
	l.had[changed.Cluster] = *changed
	for _, line := range changes(before, *changed, !ok) {
		l.p.printf("%s %s %s\n", at, changed.Cluster, line)
	}
	return nil
}
func (*lineWatcher) ticks() <-chan time.Time { return nil }
func (*lineWatcher) begin() error            { return nil }
func (*lineWatcher) end()                    {}

// changes says in lines what is new in a status: how the cluster stands, and
// which nodes and addons stand otherwise than before.
func changes(before, after cluster.Status, first bool) []string {
	var out []string
	if first || before.Revision != after.Revision {
		out = append(out, strings.TrimSpace("revision "+orDash(after.Revision.Short())+" "+after.Subject))
	}
	if first || before.Condition != after.Condition || before.Message != after.Message {
		out = append(out, string(after.Condition)+": "+text.OneLine(after.Message))
		if after.Hint != "" {
			out = append(out, "-> "+text.OneLine(after.Hint))
		}
	}
	phases := map[string]cluster.Phase{}
	for _, n := range before.Nodes {
		phases[n.Name] = n.Phase
	}
	for _, n := range after.Nodes {
		if phases[n.Name] != n.Phase {
			out = append(out, n.Name+" is "+string(n.Phase))
		}
	}
	states := map[string]string{}
	for _, a := range before.Addons {
		states[a.Name] = a.State
	}
	for _, a := range after.Addons {
		if states[a.Name] != a.State {
			out = append(out, "addon "+a.Name+" is "+a.State)
		}
	}
	return out
}

// screen shows statuses in place on a terminal.
type screen struct {
	f      *os.File
	p      printer
	size   func() (cols, rows int)
	tick   *time.Ticker
	ticked chan time.Time
	resize chan os.Signal
	stop   chan struct{}
	last   []byte
}

// What a terminal is told: a screen of its own, without the cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

func newScreen(f *os.File, p printer) *screen {
	return &screen{f: f, p: p, size: func() (int, int) {
		cols, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || cols <= 0 || rows <= 0 {
			return 80, 24
		}
		return cols, rows
	}}
}

func (s *screen) begin() error {
	s.resize, s.ticked, s.stop = make(chan os.Signal, 1), make(chan time.Time), make(chan struct{})
	signal.Notify(s.resize, unix.SIGWINCH)
	s.tick = time.NewTicker(time.Second)
	go func() {
		for {
			var at time.Time
			select {
			case <-s.stop:
				return
			case at = <-s.tick.C:
			case <-s.resize:
				at = time.Now()
			}
			select {
			case s.ticked <- at:
			case <-s.stop:
				return
			}
		}
	}()
	_, err := io.WriteString(s.f, enterScreen)
	return err
}

func (s *screen) end() {
	signal.Stop(s.resize)
	s.tick.Stop()
	close(s.stop)
	_, _ = io.WriteString(s.f, leaveScreen) // a terminal that is gone needs none
}

func (s *screen) ticks() <-chan time.Time { return s.ticked }

func (s *screen) show(all []cluster.Status, _ *cluster.Status, trouble []string, away error) error {
	var b bytes.Buffer
	p := s.p
	p.w, p.now = clean{&b}, time.Now()
	if away != nil {
		p.printf("%s\n\n", p.paint(away.Error(), "33"))
	}
	p.trouble(trouble)
	p.statuses(all)
	cols, rows := s.size()
	frame := frameOf(b.Bytes(), cols, rows)
	if bytes.Equal(frame, s.last) {
		return nil
	}
	s.last = frame
	_, err := s.f.Write(frame)
	return err
}

// frameOf is what draws a text over the one before, in one piece so that nothing
// flickers: tables cut to the width, cures and what they cure wrapped, and what is
// left of older lines wiped.
func frameOf(text []byte, cols, rows int) []byte {
	lines := wrapCures(strings.Split(strings.TrimRight(string(text), "\n"), "\n"), cols)
	if over := len(lines) - rows; over > 0 && rows > 1 {
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("... %d more lines", over+1))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(fit(line, cols))
		b.WriteString("\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.Bytes()
}

// wrapCures breaks the lines that begin with an arrow, and those before them, where
// they are wider than the screen: what to do is of no use by half.
func wrapCures(lines []string, cols int) []string {
	cures := func(i int) bool { return i < len(lines) && strings.HasPrefix(strings.TrimLeft(lines[i], " "), "-> ") }
	var out []string
	for i, line := range lines {
		if cures(i) || cures(i+1) {
			out = append(out, wrap(line, cols)...)
			continue
		}
		out = append(out, line)
	}
	return out
}

// wrap breaks a line between words. What follows is indented as its text is.
func wrap(line string, cols int) []string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return []string{line}
	}
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	now, arrow := indent+words[0], indent+"->"
	if now == arrow {
		indent += "   "
	}
	var out []string
	for _, w := range words[1:] {
		if now == arrow || widthOf(now)+1+widthOf(w) <= cols {
			now += " " + w
			continue
		}
		out = append(out, now)
		now = indent + w
	}
	return append(out, now)
}

// widthOf is how many columns a text takes; colours take none.
func widthOf(text string) int {
	n := 0
	for i := 0; i < len(text); n++ {
		if c := colour([]byte(text[i:])); c > 0 {
			i += c
			n--
			continue
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		i += size
	}
	return n
}

// fit cuts a line to a width. Colours take no room, and are ended where the line
// is cut.
func fit(line string, cols int) string {
	var b strings.Builder
	width, coloured := 0, false
	for i := 0; i < len(line); {
		if n := colour([]byte(line[i:])); n > 0 {
			coloured = line[i:i+n] != "\x1b[0m"
			b.WriteString(line[i : i+n])
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(line[i:])
		if width++; width > cols {
			if coloured {
				b.WriteString("\x1b[0m")
			}
			break
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}
