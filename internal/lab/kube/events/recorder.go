// Package events is what the components of a cluster of the lab report in events: the
// words of each report, and which event a report becomes, for one that was made before
// counts up. It must not know where events are kept.
package events

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

const (
	// Kept is how long an event is kept after it was last written.
	// Source: kubernetes v1.35, default of --event-ttl.
	Kept = time.Hour
	// Granularity is how much longer an event may be kept: those of so long expire together.
	// Source: k8s.io/apiserver, storage/etcd3, defaultLeaseReuseDurationSeconds.
	Granularity = time.Minute

	// seriesEnd is how long after the last report of a series the next begins a new one.
	// Source: client-go, tools/events, finishTime.
	seriesEnd = 6 * time.Minute
	// manySeries is when those that have ended are forgotten.
	manySeries = 512
)

// Report is what a component reports of an object.
type Report struct {
	About           corev1.ObjectReference
	Type            string
	Reason, Message string
	Component, Host string
	// Action is what the component does, if it reports through events.k8s.io, as the
	// scheduler does; others count the events themselves.
	Action string
}

// Recorder knows which reports were made before. It filters and counts with the library
// of the components: at first 25 events of one of them about one object, then one in
// five minutes, and those that differ in the text alone are combined after ten.
type Recorder struct {
	correlator *record.EventCorrelator
	series     map[seriesKey]*series
	clock      *clock
}

// seriesKey is what reports have in common that are one event.
type seriesKey struct {
	about                                 corev1.ObjectReference
	kind, reason, component, host, action string
}

type series struct {
	name  string
	count int64
	last  time.Time
}

// NewRecorder makes a recorder that knows of no report.
func NewRecorder() *Recorder {
	c := &clock{}
	return &Recorder{correlator: record.NewEventCorrelator(c), series: map[seriesKey]*series{}, clock: c}
}

// clock is the time of this process, as the library wants it, which names events by it. It
// shows no time twice, for virtual time stands still.
type clock struct{ last time.Time }

func (c *clock) Now() time.Time {
	now := time.Now().Round(0)
	if !now.After(c.last) {
		now = c.last.Add(time.Nanosecond)
	}
	c.last = now
	return now
}

func (c *clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Record returns the event that a report becomes, without what a store gives it. There may
// be one of its name already, of which it is the next state. nil: it is filtered out.
func (r *Recorder) Record(rep Report) map[string]any {
	now := r.clock.Now()
	if rep.Action != "" {
		return r.recordSeries(rep, now)
	}
	at := metav1.NewTime(now)
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: nameEvent(rep, now), Namespace: rep.Namespace()},
		InvolvedObject: rep.About, Type: rep.Type, Reason: rep.Reason, Message: rep.Message,
		Source: corev1.EventSource{Component: rep.Component, Host: rep.Host}, FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
	result, err := r.correlator.EventCorrelate(e)
	if err != nil || result.Skip {
		return nil // as a component logs it, and goes on
	}
	e = result.Event
	rep.Message = e.Message
	body := bodyOf(rep, e.Name)
	source := map[string]any{"component": rep.Component}
	if rep.Host != "" {
		source["host"] = rep.Host
	}
	body["source"], body["eventTime"], body["count"] = source, nil, int64(e.Count)
	body["firstTimestamp"] = e.FirstTimestamp.UTC().Format(time.RFC3339)
	body["lastTimestamp"] = e.LastTimestamp.UTC().Format(time.RFC3339)
	return body
}

// recordSeries is Record for the newer kind of events. Its text is that of the first report.
// A real recorder writes the count of a series every half hour, and at its end.
func (r *Recorder) recordSeries(rep Report, now time.Time) map[string]any {
	key := seriesKey{rep.About, rep.Type, rep.Reason, rep.Component, rep.Host, rep.Action}
	s := r.series[key]
	if s == nil || now.Sub(s.last) > seriesEnd {
		if len(r.series) > manySeries {
			for k, old := range r.series {
				if now.Sub(old.last) > seriesEnd {
					delete(r.series, k)
				}
			}
		}
		s = &series{name: nameEvent(rep, now)}
		r.series[key] = s
	}
	s.count, s.last = s.count+1, now
	at := now.UTC().Format(metav1.RFC3339Micro)
	body := bodyOf(rep, s.name)
	body["source"], body["firstTimestamp"], body["lastTimestamp"] = map[string]any{}, nil, nil
	body["eventTime"], body["action"] = at, rep.Action
	if s.count > 1 {
		body["series"] = map[string]any{"count": s.count, "lastObservedTime": at}
	}
	return body
}

// nameEvent names a new event as the library does, by the time.
func nameEvent(rep Report, now time.Time) string {
	return fmt.Sprintf("%s.%x", rep.About.Name, now.UnixNano())
}

// Namespace is the namespace of the event: that of the object, or for one that is in none
// the default.
func (rep Report) Namespace() string {
	if rep.About.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return rep.About.Namespace
}

// bodyOf is what both kinds of events have.
func bodyOf(rep Report, name string) map[string]any {
	about := map[string]any{}
	for key, value := range map[string]string{
		"kind": rep.About.Kind, "namespace": rep.About.Namespace, "name": rep.About.Name, "uid": string(rep.About.UID),
		"apiVersion": rep.About.APIVersion, "resourceVersion": rep.About.ResourceVersion, "fieldPath": rep.About.FieldPath,
	} {
		if value != "" {
			about[key] = value
		}
	}
	return map[string]any{
		"metadata": map[string]any{"name": name, "namespace": rep.Namespace()}, "involvedObject": about,
		"type": rep.Type, "reason": rep.Reason, "message": rep.Message, "reportingComponent": rep.Component, "reportingInstance": rep.Host,
	}
}

// Repeat writes into an event that is there what a further report changes of it.
func Repeat(have, next map[string]any) {
	if series, ok := next["series"]; ok {
		have["series"] = series
		return
	}
	for _, key := range []string{"count", "message", "lastTimestamp"} {
		have[key] = next[key]
	}
}

// Expires is when an event is removed, unless it is written before.
func Expires(event map[string]any) time.Time {
	var last time.Time
	for _, path := range [][]string{{"metadata", "creationTimestamp"}, {"lastTimestamp"}, {"eventTime"}, {"series", "lastObservedTime"}} {
		// What is no time is none. RFC 3339 is read with fractions of a second, too.
		if at, err := time.Parse(time.RFC3339, rules.TextAt(event, path...)); err == nil && at.After(last) {
			last = at
		}
	}
	return last.Add(Kept)
}
