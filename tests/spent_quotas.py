"""What providers answer, with status 429, where an account has no money left."""

SPENT = {
    "OpenAI": {
        "error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}
    },
    "OpenAI's type, NextChat#449": {
        "error": {
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "type": "insufficient_quota",
            "code": None,
        }
    },
    "xAI, continue#10373": {
        "error": "Your team has either used all available credits or reached its monthly spending limit."
    },
    "Moonshot, continue#11443": {
        "error": {
            "message": "Your account is suspended due to insufficient balance, please recharge your account"
        }
    },
    "Zhipu": {
        "error": {
            "code": "1113",
            "message": "\u4f59\u989d\u4e0d\u8db3\u6216\u65e0\u53ef\u7528\u8d44\u6e90\u5305",
        }
    },
    "OpenRouter, cline#5301": {
        "error": {"message": "Rate limit exceeded: free-models-per-day. Add 10 credits"}
    },
    "Gemini's quota of a day": [
        {
            "error": {
                "message": "Quota exceeded. Please retry in 34s.",
                "quotaId": "GenerateRequestsPerDayPerProject",
            }
        }
    ],
    "SerpApi, serpapi-python#16": {"error": "Your account has run out of searches."},
    "Google": {
        "error": {
            "message": "Quota exceeded for quota metric 'Queries' and limit 'Queries per day'"
        }
    },
}
