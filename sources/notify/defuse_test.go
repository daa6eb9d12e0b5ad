package notify

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// commands are what one service or another would obey.
var commands = regexp.MustCompile(`(?i)<|>|(^|[^\p{L}\p{N}])@|@(everyone|channel|here|room|all)|\][(\[]|^ *\[[^\]]*\]:|[\r\n]`)

func TestHarmless(t *testing.T) {
	for text, want := range map[string]string{
		"@everyone look":                          "(at)everyone look",
		"mail@everyone, x@HERE":                   "mail(at)everyone, x(at)HERE",
		"@\u200beveryone and a@\u2060room":        "(at)everyone and a(at)room",
		"<!channel> <!here|here> <@U012AB>":       "\u2039!channel\u203a \u2039!here|here\u203a \u2039(at)U012AB\u203a",
		"<@&42> <#7> <users/all>":                 "\u2039(at)&42\u203a \u2039#7\u203a \u2039users/all\u203a",
		"@**all** @_**me** (@channel)":            "(at)**all** (at)_**me** ((at)channel)",
		"@@room":                                  "(at)(at)room",
		`<at user_id="all"></at>`:                 "\u2039at user_id=\"all\"\u203a\u2039/at\u203a",
		`<a href="https://x">y</a>`:               "\u2039a href=\"https://x\"\u203ay\u2039/a\u203a",
		"<https://evil.example|log in>":           "\u2039https://evil.example|log in\u203a",
		"[log in](https://evil.example) ![](x)":   "[log in] (https://evil.example) ![] (x)",
		"[log in][1]\n[1]: https://evil.example":  "[log in] [1] [1]: https://evil.example",
		"one\r\ntwo\tthree":                       "one  two three",
		"\x1b[31mred\u202e":                       "[31mred",
		"a \xff b":                                "a ? b",
		"main@sha1:0123456789ab":                  "main@sha1:0123456789ab",
		"`pveum user token list talos-agent@pve`": "`pveum user token list talos-agent@pve`",
		"see https://docs.example/a?b=c&d=e#f":    "see https://docs.example/a?b=c&d=e#f",
		"nodes [cp-1 cp-2]: 3 of 4, \u00fcber":    "nodes [cp-1 cp-2]: 3 of 4, \u00fcber",
		" [1]: https://evil.example":              " [1] : https://evil.example",
		"":                                        "",
	} {
		got := defuseText(text)
		if got != want {
			t.Errorf("%q\ngot  %q\nwant %q", text, got, want)
		}
		if found := commands.FindString(got); found != "" || defuseText(got) != got {
			t.Errorf("%q: %q is left in %q", text, found, got)
		}
	}
}

func FuzzHarmless(f *testing.F) {
	for _, s := range []string{"@@@everyone", "<!here>", "[a](b)", "]\u200b(", "@\u00adall", "\xff@\xffroom"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := defuseText(s)
		if found := commands.FindString(got); found != "" || defuseText(got) != got {
			t.Errorf("%q: %q is left in %q", s, found, got)
		}
	})
}

// TestChatMentionsNoOne: over the wire people get words, and programs the original.
func TestChatMentionsNoOne(t *testing.T) {
	hostile := notice
	hostile.Message = "chart x: <!channel> @everyone [log in](https://evil.example)\n[1]: https://evil.example"
	hostile.Hint = "ask <@U012AB> or @here"
	hostile.Agent, hostile.Host, hostile.Revision = "@all", "<b>pve1</b>", "@everyone"
	s, got := receiver(t, http.StatusOK, `{"id": "1", "event": "message"}`)
	host := strings.TrimPrefix(s.URL, "http://")
	for _, address := range []string{
		"ntfy://" + host + "/topic?scheme=http",
		"ntfy://" + host + "/topic?scheme=http&title=mine",
		"generic://" + host + "/botTOKEN/sendMessage?disabletls=yes&template=json&messagekey=text&$chat_id=-100123",
		"mattermost://" + host + "/token?disabletls=yes",
		"gotify://" + host + "/AzyoeNS.D4iJLVa?disabletls=yes",
	} {
		target, err := New(Config{Kind: Chat, URL: address})
		check(t, err)
		// What each makes of the answer is another matter: it was sent.
		_ = target.Send(t.Context(), hostile)
		h := <-got
		text := string(h.body)
		var fields map[string]any
		if json.Unmarshal(h.body, &fields) == nil {
			text = ""
			for _, v := range fields {
				if word, ok := v.(string); ok {
					text += word + "\n"
				}
			}
		}
		text = strings.ReplaceAll(text, "\n-> ", "\n") // our own
		for line := range strings.Lines(text + "\n" + h.header.Get("Title")) {
			if found := commands.FindString(strings.TrimRight(line, "\n")); found != "" {
				t.Errorf("%s: %q in %q", address, found, line)
			}
		}
		if !strings.Contains(text, "chart x: \u2039!channel\u203a (at)everyone [log in] (https://evil.example)") {
			t.Errorf("%s: %s", address, text)
		}
	}
	target, err := New(Config{Kind: Webhook, URL: s.URL})
	check(t, err)
	check(t, target.Send(t.Context(), hostile))
	var all struct{ Data Notice }
	if h := <-got; json.Unmarshal(h.body, &all) != nil || all.Data != hostile {
		t.Errorf("a program gets %s", h.body)
	}
}
