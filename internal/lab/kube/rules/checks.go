package rules

import (
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CheckObject lists what the server refuses an object for. was is the version
// before, nil for a new object.
func CheckObject(of schema.GroupResource, body, was map[string]any) field.ErrorList {
	errs := checkName(of, TextAt(body, "metadata", "name"))
	if check := checks[resourceKey(of)]; check != nil {
		errs = append(errs, check(body, was)...)
	}
	return errs
}

// checks are the refusals beyond names, by resource. was is nil for a new
// object.
var checks = map[string]func(body, was map[string]any) field.ErrorList{
	"pods": func(body, was map[string]any) field.ErrorList {
		return checkPod(MapAt(body, "spec"), field.NewPath("spec"))
	},
	"policy/poddisruptionbudgets": checkBudget,
	"namespaces":                  CheckLabels,
	"apps/deployments":            checkWorkload,
	"apps/replicasets":            checkWorkload,
	"apps/daemonsets":             checkWorkload,
	"apps/statefulsets":           checkWorkload,
	"batch/jobs": func(body, was map[string]any) field.ErrorList {
		spec := field.NewPath("spec")
		errs := checkPod(MapAt(body, "spec", "template", "spec"), spec.Child("template", "spec"))
		if TextAt(body, "spec", "template", "spec", "restartPolicy") == "Always" {
			errs = append(errs, field.Required(spec.Child("template", "spec", "restartPolicy"), `valid values: "OnFailure", "Never"`))
		}
		if was != nil && !reflect.DeepEqual(ValueAt(body, "spec", "template"), ValueAt(was, "spec", "template")) {
			errs = append(errs, field.Invalid(spec.Child("template"), "", "field is immutable"))
		}
		return errs
	},
	"services": func(body, was map[string]any) field.ErrorList {
		if len(ListAt(body, "spec", "ports")) == 0 && TextAt(body, "spec", "type") != "ExternalName" && TextAt(body, "spec", "clusterIP") != "None" {
			return field.ErrorList{field.Required(field.NewPath("spec", "ports"), "")}
		}
		return nil
	},
	"configmaps": checkImmutable,
	"secrets":    checkImmutable,
	"apiextensions.k8s.io/customresourcedefinitions": func(body, was map[string]any) field.ErrorList {
		var errs field.ErrorList
		want := TextAt(body, "spec", "names", "plural") + "." + TextAt(body, "spec", "group")
		if name := TextAt(body, "metadata", "name"); name != want {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, `must be spec.names.plural+"."+spec.group`))
		}
		stored := 0
		for _, v := range MapsAt(body, "spec", "versions") {
			if BoolAt(v, "storage") {
				stored++
			}
		}
		if stored != 1 {
			errs = append(errs, field.Invalid(field.NewPath("spec", "versions"), stored, "must have exactly one version marked as storage version"))
		}
		return errs
	},
}

// checkName applies the rules for names of a resource.
func checkName(of schema.GroupResource, name string) field.ErrorList {
	var problems []string
	switch {
	case resourceKey(of) == "namespaces":
		problems = validation.IsDNS1123Label(name)
	case resourceKey(of) == "services":
		problems = validation.IsDNS1035Label(name)
	case of.Group == "rbac.authorization.k8s.io":
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/%") {
			problems = []string{"must be a path segment"}
		}
	default:
		problems = validation.IsDNS1123Subdomain(name)
	}
	var errs field.ErrorList
	for _, s := range problems {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, s))
	}
	return errs
}

// checkWorkload wants a selector that finds the workload's own pods and never
// changes.
func checkWorkload(body, was map[string]any) field.ErrorList {
	spec := field.NewPath("spec")
	errs := checkPod(MapAt(body, "spec", "template", "spec"), spec.Child("template", "spec"))
	sel, err := SelectorAt(body)
	if err != nil {
		return append(errs, field.Invalid(spec.Child("selector"), ValueAt(body, "spec", "selector"), err.Error()))
	}
	if sel.Empty() {
		errs = append(errs, field.Required(spec.Child("selector"), ""))
		sel = labels.Nothing()
	}
	ls := StringsAt(body, "spec", "template", "metadata", "labels")
	if !sel.Matches(labels.Set(ls)) {
		errs = append(errs, field.Invalid(spec.Child("template", "metadata", "labels"), ls, "`selector` does not match template `labels`"))
	}
	if was != nil && !reflect.DeepEqual(ValueAt(body, "spec", "selector"), ValueAt(was, "spec", "selector")) {
		errs = append(errs, field.Invalid(spec.Child("selector"), ValueAt(body, "spec", "selector"), "field is immutable"))
	}
	return errs
}

// SelectorAt reads spec.selector of a workload.
func SelectorAt(body map[string]any) (labels.Selector, error) {
	sel := &metav1.LabelSelector{MatchLabels: StringsAt(body, "spec", "selector", "matchLabels")}
	for _, e := range MapsAt(body, "spec", "selector", "matchExpressions") {
		var values []string
		for _, v := range ListAt(e, "values") {
			values = append(values, fmt.Sprint(v))
		}
		sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: TextAt(e, "key"), Operator: metav1.LabelSelectorOperator(TextAt(e, "operator")), Values: values,
		})
	}
	return metav1.LabelSelectorAsSelector(sel)
}

func checkPod(spec map[string]any, at *field.Path) field.ErrorList {
	containers := MapsAt(spec, "containers")
	if len(containers) == 0 {
		return field.ErrorList{field.Required(at.Child("containers"), "")}
	}
	var errs field.ErrorList
	for i, c := range containers {
		if TextAt(c, "name") == "" {
			errs = append(errs, field.Required(at.Child("containers").Index(i).Child("name"), ""))
		}
		if TextAt(c, "image") == "" {
			errs = append(errs, field.Required(at.Child("containers").Index(i).Child("image"), ""))
		}
	}
	return errs
}

func checkImmutable(body, was map[string]any) field.ErrorList {
	if was == nil || !BoolAt(was, "immutable") {
		return nil
	}
	for _, k := range []string{"immutable", "data", "binaryData"} {
		if !reflect.DeepEqual(body[k], was[k]) {
			return field.ErrorList{field.Forbidden(field.NewPath(k), "field is immutable when `immutable` is set")}
		}
	}
	return nil
}
