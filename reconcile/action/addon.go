package action

import (
	"fmt"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// Info implements Action.
func (a FetchChart) Info() Info {
	return Info{Kind: cluster.FetchChart, Subject: a.Addon.Name, Addon: a.Addon.Name, Change: "chart=" + a.Addon.Chart.Ref(),
		Text: fmt.Sprintf("fetch chart %s for addon %s", a.Addon.Chart.Ref(), a.Addon.Name)}
}

// Info implements Action.
func (a InstallAddon) Info() Info {
	i := Info{Kind: cluster.InstallAddon, Subject: a.Addon.Name, Addon: a.Addon.Name,
		Claims: []cluster.Claim{cluster.ClaimAddon(a.Addon.Name)}, Change: "chart=" + a.Addon.Chart.Ref() + " from=" + a.Status}
	switch {
	case a.PutBack != "":
		i.Change += " put-back=" + a.PutBack
		i.Text = fmt.Sprintf("upgrade addon %s in %s: %s", a.Addon.Name, a.Addon.Namespace, a.PutBack)
	case a.Status == "":
		i.Text = fmt.Sprintf("install addon %s into %s", a.Addon.Name, a.Addon.Namespace)
	case a.Status == "deployed":
		i.Text = fmt.Sprintf("upgrade addon %s in %s", a.Addon.Name, a.Addon.Namespace) + describeRelease(a.Drift)
	default:
		i.Text = fmt.Sprintf("recover addon %s in %s, which is %s", a.Addon.Name, a.Addon.Namespace, a.Status) + describeRelease(a.Drift)
	}
	return i
}

// describeRelease is what of a release becomes something else, and who made it what it is.
func describeRelease(drifts []cluster.FieldDifference) string {
	var words []string
	by := ""
	for _, f := range drifts {
		switch f.Field {
		case drift.FieldChart:
			words = append(words, fmt.Sprintf("%s from %s to %s", f.Field, f.Has, f.Wants))
		case drift.FieldValues:
			words = append(words, strings.TrimPrefix(f.Has, "others at ")+" of its values")
		}
		if f.By != "" { // without what a person wrote about it: a plan leaves the host
			who, _, _ := strings.Cut(f.By, ": ")
			by = " (" + who + ")"
		}
	}
	if len(words) == 0 {
		return by
	}
	return ": " + strings.Join(words, ", ") + by
}

// Info implements Action.
func (a MarkAddon) Info() Info {
	i := Info{Kind: cluster.MarkAddon, Subject: a.Addon.Name, Addon: a.Addon.Name, Claims: []cluster.Claim{cluster.ClaimAddon(a.Addon.Name)}, Change: "ownership=" + string(a.Addon.Ownership)}
	if a.Good {
		i.Text = fmt.Sprintf("note that addon %s in %s is ready, to roll back to", a.Addon.Name, a.Addon.Namespace)
		i.Change += " good"
		return i
	}
	if i.Text = fmt.Sprintf("note that addon %s in %s is managed", a.Addon.Name, a.Addon.Namespace); a.Addon.Ownership == cluster.BootstrapOnly {
		i.Text = fmt.Sprintf("note that addon %s in %s is not managed, and stays without its file", a.Addon.Name, a.Addon.Namespace)
	}
	return i
}

// Info implements Action.
func (a RollBackAddon) Info() Info {
	return Info{Kind: cluster.RollBackAddon, Subject: a.Addon.Name, Addon: a.Addon.Name, Claims: []cluster.Claim{cluster.ClaimAddon(a.Addon.Name)},
		Change: fmt.Sprintf("to=%d from=%s", a.To, a.Digest),
		Text:   fmt.Sprintf("roll back addon %s in %s to revision %d, which was ready", a.Addon.Name, a.Addon.Namespace, a.To)}
}

// Info implements Action. An addon of that name in another namespace waits for it: it
// may have objects that belong to no namespace.
func (a UninstallAddon) Info() Info {
	i := Info{Kind: cluster.UninstallAddon, Subject: a.Release.String(), Addon: a.Release.Name, Destructive: true,
		Claims: []cluster.Claim{cluster.ClaimAddon(a.Release.Name)},
		Text:   fmt.Sprintf("uninstall addon %s from %s, which is no longer in the inventory", a.Release.Name, a.Release.Namespace)}
	if a.Status == "uninstalling" {
		i.Text = fmt.Sprintf("finish uninstalling addon %s from %s", a.Release.Name, a.Release.Namespace)
	}
	return i
}

// Info implements Action.
func (a LabelNamespace) Info() Info {
	return Info{Kind: cluster.LabelNamespace, Subject: a.Namespace, Change: fmt.Sprintf("labels=%v annotations=%v", a.Meta.Labels, a.Meta.Annotations),
		Text: fmt.Sprintf("set the labels and annotations of namespace %s to those its addons ask for", a.Namespace)}
}
