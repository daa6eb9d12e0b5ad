package notify

import (
	"strings"
	"unicode"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// defuse returns a notice in whose words no chat service finds a command. Much of them
// comes from others: whoever pushes, a chart, a machine. What is changed stays
// readable; a webhook for programs gets the original.
func (n Notice) defuse() Notice {
	for _, word := range []*string{&n.Agent, &n.Host, &n.Cluster, &n.Condition, &n.Reason, &n.Concerns, &n.About, &n.Message, &n.Hint, &n.Revision, &n.Applied} {
		*word = defuseText(*word)
	}
	return n
}

// Services call people in brackets (Slack, Discord, Google Chat, Lark, WeCom,
// Teams) and with an at sign: before a name, wherever no word goes before it
// (Mattermost, Rocket.Chat, Zulip, Telegram), or before one of a few words,
// wherever it stands (Discord, Matrix). Between the two may stand what is not
// seen, which goes first. An address like a@b and a revision stay as they are.
var (
	callsSomebody = pattern.New(`(^|[^\p{L}\p{N}])@`)
	callsAll      = pattern.New(`(?i)@(everyone|channel|here|room|all)`)
	// A link whose text is not where it leads, or a picture; and where one leads
	// that stands elsewhere.
	leads  = pattern.New(`\]([(\[])`)
	leadTo = pattern.New(`^( *\[[^\]]*\]):`)

	brackets = strings.NewReplacer("<", "\u2039", ">", "\u203a")
)

// defuseText returns a text in which no chat service finds a person to call, a link with
// another name, or markup, in one line.
func defuseText(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r): // controls, directions of writing, what has no width
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = brackets.Replace(s)
	for callsSomebody.MatchString(s) { // of two in a row one hides the other
		s = callsSomebody.ReplaceAllString(s, "$1(at)")
	}
	s = callsAll.ReplaceAllString(s, "(at)$1")
	return leadTo.ReplaceAllString(leads.ReplaceAllString(s, "] $1"), "$1 :")
}
