package pve

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"
)

var (
	macInText    = regexp.MustCompile(`(?i)BC:24:11(?::[0-9a-f]{2}){3}`)
	uuidInText   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	hexInText    = regexp.MustCompile(`[0-9a-f]{64}|[0-9a-f]{40}|pveupload-[0-9a-f]{32}|tmp_dwnl\.\d+`)
	upidParts    = regexp.MustCompile(`UPID:([a-z0-9]+):[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:`)
	timeInText   = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|ctime=\d+`)
	speedInText  = regexp.MustCompile(`[\d.]+ ?[KMG](?:B/s)?=?[\d.]*s?\b|\(\d+ [KMG]B/s\)`)
	progressLine = regexp.MustCompile(`^transferred |^ *\d+K[ .]+\d+%`)
)

// volatile are the numbers that show how a host is doing rather than how it
// answers, and masked the texts: only that they are there is compared.
var (
	volatile = setOf("pid", "pstart", "starttime", "endtime", "uptime", "ctime", "cpu", "mem", "memhost", "netin", "netout", "diskread", "diskwrite",
		"used", "avail", "used_fraction", "free", "available", "disk", "total", "user_hz", "rx-bytes", "tx-bytes",
		"maxmem@node", "maxdisk@node", "cores@cpuinfo", "maxdisk@storage")
	masked = setOf("ssl_fingerprint", "mhz", "flags", "kversion", "loadavg", "ticket", "CSRFPreventionToken", "hvm", "saved", "release@current-kernel",
		"version@current-kernel", "value@token")
)

// normal brings an answer into the form in which two are compared.
func (st *stage) normal(status string, body []byte) any {
	out := map[string]any{"status": st.text(status)}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		out["body"] = st.text(string(body))
		return out
	}
	out["body"] = st.tree("", v)
	return out
}

func (st *stage) tree(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		return st.object(key, v)
	case []any:
		if lines, ok := logLines(v); ok {
			return st.logText(lines)
		}
		out := []any{}
		for _, e := range v {
			out = append(out, st.tree(key, e))
		}
		sort.SliceStable(out, func(i, j int) bool { return show(out[i]) < show(out[j]) })
		return out
	case string:
		if key == "content" {
			parts := strings.Split(v, ",")
			slices.Sort(parts)
			return strings.Join(parts, ",")
		}
		return st.text(v)
	}
	return v
}

func (st *stage) object(key string, v map[string]any) any {
	out := map[string]any{}
	kind := key
	if t, ok := v["type"].(string); ok && (t == "node" || t == "storage") {
		kind = t
	}
	for k, e := range v {
		// A log's total counts the progress lines.
		_, isLog := v["data"].([]any)
		switch {
		case k == "total" && isLog:
		case masked[k] || masked[k+"@"+kind]:
			out[k] = "<masked>"
		case isNumber(e) && (volatile[k] || volatile[k+"@"+kind]):
			out[k] = "<number>"
		case k == "blockstat" || k == "nics":
			out[k] = zero(st.tree(k, e))
		default:
			out[k] = st.tree(k, e)
		}
	}
	return out
}

func isNumber(v any) bool {
	_, ok := v.(float64)
	return ok
}

// zero sets every number to nought.
func zero(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = zero(v[k])
		}
	case float64:
		return 0.0
	}
	return v
}

// logLines reads the lines of a task's log.
func logLines(v []any) ([]string, bool) {
	var out []string
	for _, e := range v {
		m, ok := e.(map[string]any)
		text, isText := m["t"].(string)
		if !ok || !isText {
			return nil, false
		}
		out = append(out, text)
	}
	return out, len(out) > 0
}

func (st *stage) logText(lines []string) any {
	out := []any{}
	for _, l := range lines {
		if !progressLine.MatchString(l) {
			out = append(out, st.text(l))
		}
	}
	return out
}

func (st *stage) text(s string) string {
	s = upidParts.ReplaceAllString(s, "UPID:$1:")
	s = uuidInText.ReplaceAllString(s, "UUID")
	s = hexInText.ReplaceAllString(s, "HEX")
	s = timeInText.ReplaceAllString(s, "TIME")
	if strings.Contains(s, "/s)") {
		s = speedInText.ReplaceAllString(s, "SPEED")
	}
	return macInText.ReplaceAllStringFunc(s, func(mac string) string {
		if st.macs[strings.ToUpper(mac)] {
			return mac
		}
		return "MAC"
	})
}

// mask replaces in have whatever want has hidden behind <secret>.
func mask(want, have any) any {
	switch w := want.(type) {
	case string:
		if _, ok := have.(string); ok && strings.Contains(w, "<secret>") {
			return w
		}
	case map[string]any:
		if h, ok := have.(map[string]any); ok {
			for k := range w {
				if _, there := h[k]; there {
					h[k] = mask(w[k], h[k])
				}
			}
		}
	case []any:
		// Hidden values were sorted among shown ones: pair them by their key.
		if h, ok := have.([]any); ok && len(h) == len(w) {
			for i := range w {
				for j := range h {
					if sameKey(w[i], h[j]) {
						h[j] = mask(w[i], h[j])
					}
				}
			}
			if len(h) > 0 && sameKey(h[0], h[0]) {
				sort.SliceStable(h, func(i, j int) bool { return show(h[i]) < show(h[j]) })
			}
		}
	}
	return have
}

func sameKey(a, b any) bool {
	x, ok := a.(map[string]any)
	y, ok2 := b.(map[string]any)
	return ok && ok2 && x["key"] != nil && x["key"] == y["key"]
}

func show(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(b.String())
	if len(text) > 3000 {
		return text[:3000] + "..."
	}
	return text
}

// diff lists where two trees differ.
func diff(at string, want, have any) []string {
	w, ok := want.(map[string]any)
	h, ok2 := have.(map[string]any)
	if ok && ok2 {
		var out []string
		keys := setOf(append(sortedKeys(w), sortedKeys(h)...)...)
		for _, k := range sortedKeys(keys) {
			a, inWant := w[k]
			b, inHave := h[k]
			switch {
			case !inHave:
				out = append(out, fmt.Sprintf("%s.%s: missing, want %s", at, k, show(a)))
			case !inWant:
				out = append(out, fmt.Sprintf("%s.%s: unexpected %s", at, k, show(b)))
			default:
				out = append(out, diff(at+"."+k, a, b)...)
			}
		}
		return out
	}
	wl, ok := want.([]any)
	hl, ok2 := have.([]any)
	if ok && ok2 && len(wl) == len(hl) {
		var out []string
		for i := range wl {
			out = append(out, diff(fmt.Sprintf("%s[%d]", at, i), wl[i], hl[i])...)
		}
		return out
	}
	if reflect.DeepEqual(want, have) {
		return nil
	}
	return []string{fmt.Sprintf("%s: want %s, have %s", at, show(want), show(have))}
}
