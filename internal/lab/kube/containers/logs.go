package containers

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// PickContainer finds the container that a call is about; it need not be named where
// there is one.
// Source: kubernetes v1.35, pkg/registry/core/pod, validateContainer.
func PickContainer(pod map[string]any, named string) (string, error) {
	name := rules.TextAt(pod, "metadata", "name")
	var all []string
	for _, c := range All(pod) {
		all = append(all, rules.TextAt(c, "name"))
	}
	main := rules.MapsAt(pod, "spec", "containers")
	switch {
	case named != "" && !slices.Contains(all, named):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", named, name))
	case named != "":
		return named, nil
	case len(main) == 1:
		return rules.TextAt(main[0], "name"), nil
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v", name, all))
}

// LogOptions are what a client wants of a log.
type LogOptions struct {
	Follow, Previous, Timestamps bool
	Query                        string // what the kubelet is asked for

	since       time.Time
	tail, bytes int64 // negative: all
}

// ReadLogOptions reads what a request for the log of a pod asks for.
// Source: kubernetes v1.35, pkg/apis/core/validation, ValidatePodLogOptions, and
// pkg/registry/core/pod, LogLocation.
func ReadLogOptions(pod string, q url.Values) (LogOptions, error) {
	o := LogOptions{tail: -1, bytes: -1}
	params := url.Values{}
	for name, to := range map[string]*bool{"follow": &o.Follow, "previous": &o.Previous, "timestamps": &o.Timestamps} {
		if on, err := strconv.ParseBool(q.Get(name)); err == nil && on {
			*to = true
			params.Set(name, "true")
		}
	}
	var errs field.ErrorList
	seconds := int64(-1)
	for _, n := range []struct {
		name  string
		to    *int64
		least int64
		text  string
	}{
		{"tailLines", &o.tail, 0, "must be greater than or equal to 0"},
		{"limitBytes", &o.bytes, 1, "must be greater than 0"},
		{"sinceSeconds", &seconds, 1, "must be greater than 0"},
	} {
		if !q.Has(n.name) {
			continue
		}
		v, err := strconv.ParseInt(q.Get(n.name), 10, 64)
		if err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
		if v < n.least {
			errs = append(errs, field.Invalid(field.NewPath(n.name), v, n.text))
		}
		*n.to = v
		params.Set(n.name, q.Get(n.name))
	}
	if seconds >= 0 {
		o.since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	if at := q.Get("sinceTime"); at != "" {
		since, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
		if q.Has("sinceSeconds") {
			errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
		}
		o.since = since
		params.Set("sinceTime", since.Format(time.RFC3339))
	}
	if len(errs) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, pod, errs)
	}
	o.Query = params.Encode()
	return o, nil
}

// Line is a line of a log.
type Line struct {
	at   time.Time
	text string
}

// ReadLog is what a container has logged: what the kubelet did with it, because no
// program runs there. ended reports that nothing will follow.
// Source of the refusals: kubernetes v1.35, pkg/kubelet, validateContainerLogStatus.
func ReadLog(pod map[string]any, container string, previous bool) (log []Line, ended bool, err error) {
	name := rules.TextAt(pod, "metadata", "name")
	var status map[string]any
	for _, list := range statusesOf {
		for _, c := range rules.MapsAt(pod, "status", list) {
			if rules.TextAt(c, "name") == container {
				status = c
			}
		}
	}
	image := rules.TextAt(status, "image")
	last := rules.MapAt(status, "lastState", "terminated")
	waits := rules.TextAt(status, "state", "waiting", "reason")
	switch {
	case previous && last == nil:
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("previous terminated container %q in pod %q not found", container, name))
	case previous || waits != "" && last != nil:
		return linesOf(last, container, image), true, nil
	case status == nil:
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is not available", container, name))
	case waits == "ImagePullBackOff":
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: trying and failing to pull image", container, name))
	case waits != "":
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, name, waits))
	}
	if over := rules.MapAt(status, "state", "terminated"); over != nil {
		return linesOf(over, container, image), true, nil
	}
	return linesOf(rules.MapAt(status, "state", "running"), container, image), false, nil
}

// linesOf is the log of a container in a state. A container whose machine lost its power
// has no last line.
func linesOf(state map[string]any, container, image string) []Line {
	began, ended := timeAt(state, "startedAt"), timeAt(state, "finishedAt")
	log := []Line{
		{began, fmt.Sprintf("container %q of image %q on the lab", container, image)},
		{began, "no program runs in it: its start and its end are all that it logs"},
	}
	switch {
	case ended.IsZero() || rules.TextAt(state, "reason") == "Unknown":
	case rules.NumberAt(state, "exitCode") == 137:
		log = append(log, Line{ended, fmt.Sprintf("container %q was killed at the end of its grace", container)})
	default:
		log = append(log, Line{ended, fmt.Sprintf("container %q ended with exit code %d", container, rules.NumberAt(state, "exitCode"))})
	}
	return log
}

func timeAt(state map[string]any, key string) time.Time {
	// What is no time is none: the kubelet wrote it.
	at, _ := time.Parse(time.RFC3339, rules.TextAt(state, key))
	return at
}

// Cut are the lines that a client gets of a log: those of the time it wants, and the
// last so many of them.
func (o *LogOptions) Cut(log []Line) []Line {
	log = slices.DeleteFunc(slices.Clone(log), func(l Line) bool { return l.at.Before(o.since) })
	if o.tail >= 0 && o.tail < int64(len(log)) {
		log = log[int64(len(log))-o.tail:]
	}
	return log
}

// Print is the text of lines as a client gets it, of which there is never more than it
// wants in all. full reports that it got that.
func (o *LogOptions) Print(lines []Line) (text string, full bool) {
	var b strings.Builder
	for _, l := range lines {
		if o.Timestamps {
			b.WriteString(l.at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00 "))
		}
		b.WriteString(l.text + "\n")
	}
	text = b.String()
	if o.bytes < 0 {
		return text, false
	}
	text = text[:min(int64(len(text)), o.bytes)]
	o.bytes -= int64(len(text))
	return text, o.bytes == 0
}
