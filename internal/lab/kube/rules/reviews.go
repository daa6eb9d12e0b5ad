package rules

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// MayAll reports whether a member of these groups may do everything; others may do
// nothing but what is open to all.
func MayAll(groups []string) bool { return slices.Contains(groups, "system:masters") }

// Review is the status of a review of a kind: what who asks may do, or who that is. What
// everybody may do is in the roles that a new cluster binds to all who have shown who
// they are.
// Source: kubernetes v1.35, plugin/pkg/auth/authorizer/rbac/bootstrappolicy.
func Review(kind string, body map[string]any, user string, groups []string) (map[string]any, error) {
	switch kind {
	case "SelfSubjectReview":
		list := make([]any, 0, len(groups))
		for _, g := range groups {
			list = append(list, g)
		}
		return map[string]any{"userInfo": map[string]any{"username": user, "groups": list}}, nil
	case "SelfSubjectAccessReview":
		return map[string]any{"allowed": MayAll(groups)}, nil
	}
	if TextAt(body, "spec", "namespace") == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	var resources, paths []any
	if MayAll(groups) {
		resources = append(resources, map[string]any{"verbs": []any{"*"}, "apiGroups": []any{"*"}, "resources": []any{"*"}})
		paths = append(paths, map[string]any{"verbs": []any{"*"}, "nonResourceURLs": []any{"*"}})
	}
	resources = append(resources,
		map[string]any{"verbs": []any{"create"}, "apiGroups": []any{"authorization.k8s.io"}, "resources": []any{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}},
		map[string]any{"verbs": []any{"create"}, "apiGroups": []any{"authentication.k8s.io"}, "resources": []any{"selfsubjectreviews"}})
	paths = append(paths, map[string]any{"verbs": []any{"get"}, "nonResourceURLs": []any{
		"/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/"}})
	return map[string]any{"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}, nil
}

// Impersonate is whom the headers of a request want to be, "kubectl --as", which is who
// sends it where they name no user. Only who may do everything may be another.
// Source: kubernetes v1.35, apiserver/pkg/endpoints/filters/impersonation.
func Impersonate(header http.Header, user string, groups []string) (string, []string, error) {
	name, as := header.Get(authenticationv1.ImpersonateUserHeader), slices.Clone(header.Values(authenticationv1.ImpersonateGroupHeader))
	switch {
	case name == "" && len(as) > 0:
		return "", nil, apierrors.NewInternalError(fmt.Errorf("requested %v without impersonating a user", as))
	case name == "":
		return user, groups, nil
	}
	resource, called, where := "users", name, "at the cluster scope"
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		namespace, short, _ := strings.Cut(account, ":")
		resource, called, where = "serviceaccounts", short, fmt.Sprintf("in the namespace %q", namespace)
		if len(as) == 0 {
			as = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
		}
	}
	if !MayAll(groups) {
		text := fmt.Sprintf("User %q cannot impersonate resource %q in API group \"\" %s", user, resource, where)
		return "", nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, called, errors.New(text))
	}
	if name != "system:anonymous" && !slices.Contains(as, "system:authenticated") {
		as = append(as, "system:authenticated")
	}
	return name, as, nil
}
