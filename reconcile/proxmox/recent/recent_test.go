package recent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnswers: what is answered from memory, until when, and what of ours ends that.
func TestAnswers(t *testing.T) {
	const start, config, creation = "POST /nodes/pve1/qemu/411/status/start", "PUT /nodes/pve1/qemu/411/config", "POST /nodes/pve1/qemu"
	request := func(what string) func(*Answers) {
		method, path, _ := strings.Cut(what, " ")
		return func(a *Answers) { a.Requested(method, path) }
	}
	ended := func(kind string) func(*Answers) { return func(a *Answers) { a.Ended(kind) } }
	active := map[string]string{"source": "active", "limit": "1000"}
	for name, c := range map[string]struct {
		path   string
		query  map[string]string
		after  time.Duration
		change func(*Answers)
		quiet  bool // we have changed nothing lately
		asks   int  // of two
	}{
		"the list, where we change nothing":        {path: "/cluster/resources", after: 2900 * time.Millisecond, quiet: true, asks: 1},
		"the list, where we change nothing, later": {path: "/cluster/resources", after: 3 * time.Second, quiet: true, asks: 2},
		"what runs, where we change nothing":       {path: "/nodes/pve1/tasks", query: active, after: 2900 * time.Millisecond, quiet: true, asks: 1},
		"the quorum, where we change nothing":      {path: "/cluster/status", after: 2900 * time.Millisecond, quiet: true, asks: 1},
		"images, where we change nothing":          {path: "/nodes/pve1/storage/local/content", after: 10 * time.Second, quiet: true, asks: 2},
		"the list, where somebody is curious":      {path: "/cluster/resources", change: (*Answers).Clear, quiet: true, asks: 2},
		"the list":                                 {path: "/cluster/resources", after: 800 * time.Millisecond, asks: 1},
		"the list, a second later":                 {path: "/cluster/resources", after: time.Second, asks: 2},
		"the list, after a start":                  {path: "/cluster/resources", change: request(start), asks: 2},
		"the list, after the end of a start":       {path: "/cluster/resources", change: ended("qmstart"), asks: 2},
		"a list of something":                      {path: "/cluster/resources", query: map[string]string{"type": "vm"}, asks: 2},
		"what runs":                                {path: "/nodes/pve1/tasks", query: active, asks: 1},
		"what runs, after the end of a start":      {path: "/nodes/pve1/tasks", query: active, change: ended("qmstart"), asks: 2},
		"the tasks of a vm":                        {path: "/nodes/pve1/tasks", query: map[string]string{"source": "all", "vmid": "411"}, asks: 2},
		"a task":                                   {path: "/nodes/pve1/tasks/UPID:pve1:1/status", asks: 2},
		"a config":                                 {path: "/nodes/pve1/qemu/411/config", after: 800 * time.Millisecond, asks: 1},
		"a config, later":                          {path: "/nodes/pve1/qemu/411/config", after: time.Second, asks: 2},
		"a vm, after a config of another":          {path: "/nodes/pve1/qemu/411/status/current", change: request("PUT /nodes/pve1/qemu/412/config"), asks: 2},
		"a vm, after the end of its start":         {path: "/nodes/pve1/qemu/411/status/current", change: ended("qmstart"), asks: 2},
		"changes that wait, after a creation":      {path: "/nodes/pve1/qemu/411/pending", change: request(creation), asks: 2},
		"a snapshot":                               {path: "/nodes/pve1/qemu/411/snapshot", asks: 2},
		"images":                                   {path: "/nodes/pve1/storage/local/content", after: 9 * time.Second, asks: 1},
		"images, later":                            {path: "/nodes/pve1/storage/local/content", after: 10 * time.Second, asks: 2},
		"images, after a start":                    {path: "/nodes/pve1/storage/local/content", change: request(start), asks: 1},
		"images, after a config":                   {path: "/nodes/pve1/storage/local/content", change: request(config), asks: 1},
		"images, after an upload":                  {path: "/nodes/pve1/storage/local/content", change: request("POST /nodes/pve1/storage/local/upload"), asks: 2},
		"images, after an upload's end":            {path: "/nodes/pve1/storage/local/content", change: ended("imgcopy"), asks: 2},
		"storages, after a creation":               {path: "/nodes/pve1/storage", change: request(creation), asks: 2},
		"storages, after a start":                  {path: "/nodes/pve1/storage", change: ended("qmstart"), asks: 1},
		"the quorum":                               {path: "/cluster/status", after: 800 * time.Millisecond, change: request(creation), asks: 1},
		"the quorum, later":                        {path: "/cluster/status", after: time.Second, asks: 2},
		"images, after a disk is plugged in":       {path: "/nodes/pve1/storage/local/content", change: request("POST /nodes/pve1/qemu/411/config"), asks: 2},
		"whether HA is armed":                      {path: "/cluster/ha/status/current", after: 9 * time.Second, change: request(creation), asks: 1},
		"whether HA is armed, later":               {path: "/cluster/ha/status/current", after: 10 * time.Second, asks: 2},
		"what HA holds":                            {path: "/cluster/ha/resources", asks: 2},
		"rights on a pool":                         {path: "/access/permissions", query: map[string]string{"path": "/pool/talos"}, after: 800 * time.Millisecond, asks: 1},
		"rights on a pool, later":                  {path: "/access/permissions", query: map[string]string{"path": "/pool/talos"}, after: time.Second, asks: 2},
		"all rights":                               {path: "/access/permissions", asks: 2},
		"a free vmid":                              {path: "/cluster/nextid", query: map[string]string{"vmid": "411"}, after: 59 * time.Second, change: request(start), asks: 1},
		"a free vmid, after an upload":             {path: "/cluster/nextid", query: map[string]string{"vmid": "411"}, change: ended("imgcopy"), asks: 1},
		"a free vmid, after a creation":            {path: "/cluster/nextid", query: map[string]string{"vmid": "411"}, change: request(creation), asks: 1},
		"a free vmid, later":                       {path: "/cluster/nextid", query: map[string]string{"vmid": "411"}, after: time.Minute, asks: 2},
		"a free vmid, where somebody is curious":   {path: "/cluster/nextid", query: map[string]string{"vmid": "411"}, change: (*Answers).Clear, asks: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			var a Answers
			if !c.quiet {
				a.Requested("POST", "/nodes/pve1/qemu/499/status/start")
			}
			asked := 0
			for range 2 {
				var got int
				if err := a.Get(With(t.Context()), c.path, c.query, &got, func(into any) error { asked++; return json.Unmarshal([]byte("7"), into) }); err != nil || got != 7 {
					t.Fatalf("%s: %d, %v", name, got, err)
				}
				time.Sleep(c.after)
				if c.change != nil {
					c.change(&a)
				}
			}
			if asked != c.asks {
				t.Errorf("%s: asked %d times, want %d", name, asked, c.asks)
			}
		})
	}
}

// TestAnswersOfTheirTime: an answer that was asked for before we changed something is not remembered, nor one for another question, nor an
// error; and who is no look is given none.
func TestAnswersOfTheirTime(t *testing.T) {
	var a Answers
	var asked int
	get := func(ctx context.Context, path string, query map[string]string, meanwhile func(), fails error) (got int, err error) {
		err = a.Get(ctx, path, query, &got, func(into any) error {
			asked++
			if meanwhile != nil {
				meanwhile()
			}
			if fails != nil {
				return fails
			}
			return json.Unmarshal([]byte{byte('0' + asked)}, into)
		})
		return got, err
	}
	look, oops := With(t.Context()), errors.New("oops")
	for i, step := range []struct {
		ctx       context.Context
		path      string
		query     map[string]string
		meanwhile func()
		fails     error
		want      int
	}{
		{ctx: look, path: "/cluster/status", fails: oops},
		{ctx: look, path: "/cluster/status", want: 2},
		{ctx: look, path: "/cluster/status", want: 2},
		{ctx: t.Context(), path: "/cluster/status", want: 3},
		{ctx: look, path: "/cluster/status", want: 2}, // what an action asks is not what looks see
		{ctx: look, path: "/cluster/nextid", query: map[string]string{"vmid": "1"}, want: 4},
		{ctx: look, path: "/cluster/nextid", query: map[string]string{"vmid": "2"}, want: 5},
		{ctx: look, path: "/cluster/nextid", query: map[string]string{"vmid": "1"}, want: 4},
		{ctx: look, path: "/nodes/a/storage", meanwhile: func() { a.Requested("POST", "/nodes/a/qemu") }, want: 6},
		{ctx: look, path: "/nodes/a/storage", want: 7},
		{ctx: look, path: "/nodes/a/storage", want: 7},
		{ctx: look, path: "/nodes/b/storage", meanwhile: a.Clear, want: 8},
		{ctx: look, path: "/nodes/b/storage", want: 9},
	} {
		if got, err := get(step.ctx, step.path, step.query, step.meanwhile, step.fails); got != step.want || !errors.Is(err, step.fails) {
			t.Errorf("%d: %d, %v, want %d", i, got, err, step.want)
		}
	}
}

// TestOldAnswersAreDropped: memory does not grow with what is not asked any more.
func TestOldAnswersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Answers
		for i := range 1000 {
			var got int
			if err := a.Get(With(t.Context()), "/cluster/nextid", map[string]string{"vmid": time.Duration(i).String()}, &got, func(into any) error { return json.Unmarshal([]byte("7"), into) }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := len(a.held); n > 61 {
			t.Errorf("%d answers are held", n)
		}
	})
}

// TestWhatALookBeginsWith: what runs is not older than the list of the same look, also where it alone would still hold.
func TestWhatALookBeginsWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Answers
		a.Requested("POST", "/nodes/pve1/qemu/499/status/start")
		var asked []string
		get := func(path string, query map[string]string, takes time.Duration) {
			t.Helper()
			var got int
			if err := a.Get(With(t.Context()), path, query, &got, func(into any) error {
				asked = append(asked, path)
				time.Sleep(takes)
				return json.Unmarshal([]byte("7"), into)
			}); err != nil || got != 7 {
				t.Fatalf("%s: %d, %v", path, got, err)
			}
		}
		look := func(takes time.Duration) {
			get("/cluster/resources", nil, takes)
			get("/nodes/a/tasks", map[string]string{"source": "active"}, 0)
		}
		look(listsFor / 10)
		look(0)
		time.Sleep(listsFor - listsFor/20) // the list has had its time, and what runs has not
		look(0)
		if fmt.Sprint(asked) != "[/cluster/resources /nodes/a/tasks /cluster/resources /nodes/a/tasks]" {
			t.Errorf("asked: %v", asked)
		}
	})
}

// TestWhatIsAskedBesideAList: what a look was answered before the list of another look came is none for that: the token may have
// lost its rights in between, and the list be empty for that.
func TestWhatIsAskedBesideAList(t *testing.T) {
	var a Answers
	var asked []string
	get := func(path string, query map[string]string, meanwhile func()) {
		t.Helper()
		var got int
		if err := a.Get(With(t.Context()), path, query, &got, func(into any) error {
			asked = append(asked, path)
			if meanwhile != nil {
				meanwhile()
			}
			return json.Unmarshal([]byte("7"), into)
		}); err != nil || got != 7 {
			t.Fatalf("%s: %d, %v", path, got, err)
		}
	}
	rights := func() { get("/access/permissions", map[string]string{"path": "/vms"}, nil) }
	get("/cluster/resources", nil, rights)
	rights()
	rights()
	get("/cluster/resources", nil, rights)
	if fmt.Sprint(asked) != "[/cluster/resources /access/permissions /access/permissions]" {
		t.Errorf("asked: %v", asked)
	}
}

// TestTaken: that a VMID is free is forgotten for one by itself, also where that is being asked.
func TestTaken(t *testing.T) {
	var a Answers
	asked := map[string]int{}
	get := func(vmid string, meanwhile func()) {
		t.Helper()
		if err := a.Get(With(t.Context()), "/cluster/nextid", map[string]string{"vmid": vmid}, new(string), func(into any) error {
			asked[vmid]++
			if meanwhile != nil {
				meanwhile()
			}
			return json.Unmarshal([]byte(`"`+vmid+`"`), into)
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		get("411", nil)
		get("412", nil)
	}
	a.Taken(411)
	get("411", nil)
	get("412", nil)
	get("413", func() { a.Taken(413) })
	get("413", nil)
	if asked["411"] != 2 || asked["412"] != 1 || asked["413"] != 2 {
		t.Errorf("asked: %v", asked)
	}
}

// TestAsked: an answer is as old as the question was, not as the look that is given it.
func TestAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Answers
		began := time.Now()
		for _, path := range []string{"/nodes/a/qemu/1/status/current", "/nodes/a/qemu/1/pending"} {
			if err := a.Get(With(t.Context()), path, nil, new(int), func(into any) error { return json.Unmarshal([]byte("7"), into) }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		now := time.Now()
		for want, paths := range map[time.Time][]string{
			began:                  {"/nodes/a/qemu/1/pending", "/nodes/a/qemu/1/status/current"},
			began.Add(time.Second): {"/nodes/a/qemu/1/pending", "/nodes/a/qemu/1/config"},
			now:                    {"/nodes/a/qemu/1/config"},
		} {
			if got := a.Asked(now, paths...); !got.Equal(want) {
				t.Errorf("%v: %v ago", paths, now.Sub(got))
			}
		}
	})
}

// TestAnswerWithoutData: there is nothing in it, and that is remembered.
func TestAnswerWithoutData(t *testing.T) {
	var a Answers
	asked := 0
	for range 2 {
		got := []int{}
		if err := a.Get(With(t.Context()), "/nodes/a/storage", nil, &got, func(any) error { asked++; return nil }); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	}
	var number int
	if err := a.Get(With(t.Context()), "/nodes/b/storage", nil, &number, func(into any) error { return json.Unmarshal([]byte(`"x"`), into) }); err == nil || !strings.Contains(err.Error(), "GET /nodes/b/storage: ") {
		t.Errorf("what cannot be read: %v", err)
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestQuiet: what is remembered for longer is so only when we have changed nothing for as long, and no task of ours has ended.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Answers
		asked := 0
		holds := func(d time.Duration) bool {
			before := asked
			for range 2 {
				if err := a.Get(With(t.Context()), "/cluster/resources", nil, new(int), func(into any) error { asked++; return json.Unmarshal([]byte("7"), into) }); err != nil {
					t.Fatal(err)
				}
				time.Sleep(d)
			}
			a.Clear()
			return asked == before+1
		}
		if !holds(2 * time.Second) {
			t.Error("at first it is asked again after two seconds")
		}
		for what, change := range map[string]func(){
			"a request of ours":         func() { a.Requested("PUT", "/nodes/pve1/qemu/411/config") },
			"the end of a task of ours": func() { a.Ended("qmstart") },
		} {
			change()
			if holds(time.Second) {
				t.Errorf("after %s it is not asked again", what)
			}
			time.Sleep(quietFor)
			if !holds(2 * time.Second) {
				t.Errorf("long after %s it is asked again after two seconds", what)
			}
		}
	})
}
