package rules

import (
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
