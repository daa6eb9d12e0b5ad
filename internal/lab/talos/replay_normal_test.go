package talos_test

import (
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// normal takes out of an answer what must differ between two worlds: times,
// numbers that grow, secrets, and what is reported of the platform.
func normal(a answer) answer {
	a.Message = normalText(a.Message)
	a.Response = normalValue(a.Response)
	for i := range a.Messages {
		a.Messages[i] = normalValue(a.Messages[i])
	}
	if a.Code == codes.DeadlineExceeded.String() || a.Code == codes.Canceled.String() {
		a.Code, a.Message = "<the caller gave up>", ""
	}
	if resp, ok := a.Response.(map[string]any); ok {
		if list, ok := resp["messages"].([]any); ok {
			// Answers of several machines come in any order.
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(hostOf(a), hostOf(b)) })
		}
	}
	return a
}

func hostOf(v any) string {
	m, _ := v.(map[string]any)
	md, _ := m["metadata"].(map[string]any)
	host, _ := md["hostname"].(string)
	return host
}

// rewrites make texts comparable. Each explains why it may.
var rewrites = []struct {
	re  *regexp.Regexp
	to  string
	why string
}{
	{regexp.MustCompile(`(?s)(Config diff:\n\n|\ndiff:\n)(---|<diff>).*`), "$1<diff>", "diffs were cut"},
	{regexp.MustCompile(`(?s).*Error while dialing: dial tcp (\S+?):\d*:?.*(connection refused|no route to host).*`), "<cannot dial>", "the network in memory knows hosts only by what listens on them"},
	{regexp.MustCompile(`(?s).*(error reading server preface|broken pipe|closed pipe|connection reset by peer|closed network|EOF).*`), "<cut off by the server>", "which of these a client sees is chance, also in life"},
	{regexp.MustCompile(`\t\* feature HostDNS [^\n]*container mode[^\n]*\n`), "", "the recorded node was a container"},
	{regexp.MustCompile(`\d+ errors? occurred`), "N errors occurred", "because of those two"},
	{regexp.MustCompile(`\(line \d+\)`), "(line N)", "another config"},
	{regexp.MustCompile(`PID \d+`), "PID N", "process ids"},
	{regexp.MustCompile(`dns: .*`), "dns: <error>", "there is no DNS in the lab"},
	{regexp.MustCompile(`decode error: .*(did not find expected .*)`), "decode error: $1", "another version of the YAML library"},
	{regexp.MustCompile(`fe80:[0-9a-f:]+`), "<link-local>", "other hardware addresses"},
	{regexp.MustCompile(`\[\d+( \d+){31}\]`), "[<sha256>]", "another snapshot"},
	{regexp.MustCompile(`\beth0\b`), "ens18", "the recorded node was a container"},
}

func normalText(s string) string {
	for _, rw := range rewrites {
		s = rw.re.ReplaceAllString(s, rw.to)
	}
	return s
}

// dropped are fields that no two runs share.
var dropped = []string{"created", "updated", "version:metadata", "protoSpec", "bookmark", "ts", "lastChange", "actorId", "dbSize", "dbSizeInUse",
	"raftIndex", "raftAppliedIndex", "raftTerm", "sha", "goVersion", "nodeId"}

func normalValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["summary"]; ok {
			return map[string]any{"bytes": "<bytes>"}
		}
		if _, ok := v["text"]; ok {
			return map[string]any{"bytes": "<bytes>"}
		}
		out := map[string]any{}
		for k, e := range v {
			_, isResource := v["namespace"]
			switch {
			case slices.Contains(dropped, k), k == "version" && isResource:
			case k == "bytes", k == "ca", k == "crt", k == "key", k == "talosconfig":
				out[k] = "<bytes>"
			case k == "platform":
				out[k] = "<platform>"
			case k == "memberId", k == "leader", k == "id" && isDecimal(e):
				out[k] = memberName(e)
			case k == "yamlSpec":
				out[k] = normalSpec(e)
			default:
				out[k] = normalValue(e)
			}
		}
		if md, ok := out["metadata"].(map[string]any); ok {
			switch md["type"] {
			case "MachineConfigs.config.talos.dev", "OSRootSecrets.secrets.talos.dev":
				out["spec"] = "<secret>"
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = normalValue(e)
		}
		return out
	case string:
		return normalText(v)
	}
	return v
}

func isDecimal(v any) bool {
	s, ok := v.(string)
	return ok && len(s) > 15 && strings.Trim(s, "0123456789") == ""
}

// memberName distinguishes etcd members: the founder's id follows from its
// address, others' from the time too.
func memberName(v any) string {
	if name, ok := v.(string); ok && strings.HasPrefix(name, "member ") {
		return name
	}
	if v == "15953761862159307578" {
		return "the founder at 10.5.0.11"
	}
	return "another"
}

var (
	specMAC    = regexp.MustCompile(`[0-9a-f]{2}(:[0-9a-f]{2}){5}`)
	specMember = regexp.MustCompile(`memberID: [0-9a-f]+`)
	specPlat   = regexp.MustCompile(`platform: \w+`)
	specNode   = regexp.MustCompile(`nodeId: \S+`)
)

func normalSpec(v any) any {
	s, ok := v.(string)
	if !ok {
		return v
	}
	s = normalText(s)
	s = specMAC.ReplaceAllString(s, "<mac>")
	s = strings.NewReplacer(`"<mac>"`, "<mac>", `'<mac>'`, "<mac>").Replace(s)
	s = specMember.ReplaceAllString(s, "memberID: <id>")
	s = specPlat.ReplaceAllString(s, "platform: <platform>")
	return specNode.ReplaceAllString(s, "nodeId: <id>")
}

// forget removes fields wherever they are.
func forget(v any, fields ...string) {
	switch v := v.(type) {
	case map[string]any:
		for _, f := range fields {
			delete(v, f)
		}
		for _, e := range v {
			forget(e, fields...)
		}
	case []any:
		for _, e := range v {
			forget(e, fields...)
		}
	}
}

var (
	specPhase   = regexp.MustCompile(`phase: (\w+)`)
	specReady   = regexp.MustCompile(`status: "True"; type: Ready;|status: "True"\n\s*type: Ready\n`)
	specUnready = regexp.MustCompile(`reason: .*`)
)

// keepPod keeps of the status of a machine what it has of one static pod, and of the status of a
// pod, which the recordings sum up, its phase and whether it is ready.
func keepPod(response any, pod string) {
	m, _ := response.(map[string]any)
	resource, _ := m["resource"].(map[string]any)
	metadata, _ := resource["metadata"].(map[string]any)
	spec, _ := resource["spec"].(map[string]any)
	s, _ := spec["yamlSpec"].(string)
	switch metadata["type"] {
	case "StaticPodStatuses.kubernetes.talos.dev":
		phase := "none"
		if m := specPhase.FindStringSubmatch(s); m != nil {
			phase = m[1]
		}
		spec["yamlSpec"] = map[string]any{"phase": phase, "ready": specReady.MatchString(s)}
	case "MachineStatuses.runtime.talos.dev":
		spec["yamlSpec"] = specUnready.ReplaceAllStringFunc(s, func(reasons string) string {
			return "reason: " + regexp.MustCompile(`kube-system/`+pod+`-\S+ [a-z ]+`).FindString(reasons)
		})
	}
}

// forgetService removes a service from the answer to ServiceList.
func forgetService(v any, id string) {
	resp, _ := v.(map[string]any)
	messages, _ := resp["messages"].([]any)
	for _, m := range messages {
		if m, ok := m.(map[string]any); ok && m["services"] != nil {
			services, _ := m["services"].([]any)
			m["services"] = slices.DeleteFunc(services, func(s any) bool {
				service, _ := s.(map[string]any)
				return service["id"] == id
			})
		}
	}
}
